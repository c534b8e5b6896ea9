// Sliders of pictures, the filters above the claims, the keyboard for what scrolls sideways, and wings that fold.
for (const figure of document.querySelectorAll("figure.frames")) {
  const pictures = figure.querySelectorAll("img")
  const slider = figure.querySelector("input"), told = figure.querySelector("output")
  const show = () => {
    pictures.forEach((picture, i) => { picture.hidden = i != slider.value })
    told.value = pictures[slider.value].dataset.label
    slider.setAttribute("aria-valuetext", told.value)
  }
  slider.addEventListener("input", show)
  figure.classList.add("moves")
  show()
}

for (const form of document.querySelectorAll("form.filters")) {
  const rows = [...document.querySelectorAll("table.claims tbody tr")]
  const choose = () => {
    const wanted = [...new FormData(form)].filter(([_, value]) => value)
    for (const row of rows) row.hidden = !wanted.every(([name, value]) => row.dataset[name] == value)
    for (const section of document.querySelectorAll("section section:has(table.claims)"))
      section.hidden = !section.querySelector("tbody tr:not([hidden])")
    form.querySelector("output").value = `${rows.filter(row => !row.hidden).length} of ${rows.length} claims`
    const query = new URLSearchParams(wanted).toString()
    const address = query ? "?" + query : location.pathname
    if (query || location.search) history.replaceState(null, "", address + location.hash)
  }
  for (const [name, value] of new URLSearchParams(location.search))
    if (form.elements[name]) form.elements[name].value = value
  form.addEventListener("change", choose)
  choose()
}

const scrolling = new ResizeObserver(sized => {
  for (const {target} of sized)
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0
    else target.removeAttribute("tabindex")
})
const wide = "pre, .cell_output table, div.wide, .table-wrapper, .math-wrapper"
document.querySelectorAll(wide).forEach(part => scrolling.observe(part))

for (const caption of document.querySelectorAll(".sidebar-tree p.caption")) {
  if (!/^\s*(Engine|Datasets|Methods|Privacy|Deploy|Evidence):/.test(caption.textContent)) continue
  const wing = document.createElement("details"), title = document.createElement("summary")
  const list = caption.nextElementSibling
  title.className = "caption"
  title.textContent = caption.textContent
  wing.open = list.querySelector(".current-page") != null
  caption.replaceWith(wing)
  wing.append(title, list)
}
