"Attempts at the exercises of nbs/workshop/w11_classroom.ipynb: see tests/test_exercises.py."


def best_of__wrong_last(books): return {name: points for book in books for name, points in book.items()}

def best_of__wrong_drops_zeros(books):
    best = {}
    for book in books:
        for name, points in book.items():
            if points > best.get(name, 0): best[name] = points
    return best

def best_of__wrong_best_notebook(books): return max(books, key=lambda book: sum(book.values()), default={})

def best_of__right_by_name(books):
    names = {name for book in books for name in book}
    return {name: max(book[name] for book in books if name in book) for name in names}


def weeks__wrong_below_room(minutes, room):
    plan, used = [], room
    for number, length in enumerate(minutes):
        if used + length >= room: plan, used = [*plan, []], 0
        plan[-1].append(number)
        used += length
    return plan

def weeks__wrong_closes_too_late(minutes, room):
    plan, used = [[]], 0
    for number, length in enumerate(minutes):
        plan[-1].append(number)
        used += length
        if used >= room: plan, used = [*plan, []], 0
    return [week for week in plan if week]

def weeks__wrong_fills_gaps(minutes, room):
    plan = []
    for number, length in enumerate(minutes):
        week = next((w for w in plan if sum(minutes[i] for i in w) + length <= room), None)
        if week is None: plan.append([number])
        else: week.append(number)
    return plan

def weeks__right_recursive(minutes, room):
    def rest(start):
        if start == len(minutes): return []
        end = start + 1
        while end < len(minutes) and sum(minutes[start:end + 1]) <= room: end += 1
        return [list(range(start, end)), *rest(end)]
    return rest(0)
