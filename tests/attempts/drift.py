"""Attempts at the blanks of 01_drift."""
import numpy as np
import torch


def walk__right_counted(w, gradient, steps, rate):
    points = np.empty((steps + 1, len(w)))
    points[0] = w
    for i in range(steps): points[i + 1] = points[i] - rate * gradient(points[i])
    return points


def walk__wrong_without_the_beginning(w, gradient, steps, rate):
    points = []
    for _ in range(steps):
        w = w - rate * gradient(w)
        points.append(w)
    return np.array(points).reshape(steps, -1)


def walk__wrong_gradient_of_the_beginning(w, gradient, steps, rate):
    return np.stack([w - i * rate * gradient(w) for i in range(steps + 1)])


def walk__wrong_uphill(w, gradient, steps, rate):
    points = [w]
    for _ in range(steps): points.append(points[-1] + rate * gradient(points[-1]))
    return np.stack(points)


def fedavg_round__right_running_sum(w, gradients, steps, rate):
    total = 0 * w
    for gradient in gradients:
        end = w
        for _ in range(steps): end = end - rate * gradient(end)
        total = total + end
    return total / len(gradients)


def fedavg_round__wrong_one_after_the_other(w, gradients, steps, rate):
    ends = []
    for gradient in gradients:
        for _ in range(steps): w = w - rate * gradient(w)
        ends.append(w)
    return np.mean(ends, axis=0)


def fedavg_round__wrong_mean_of_all_points(w, gradients, steps, rate):
    points = []
    for gradient in gradients:
        end = w
        for _ in range(steps):
            end = end - rate * gradient(end)
            points.append(end)
    return np.mean(points, axis=0)


def fedavg_round__wrong_steps_on_the_mean_gradient(w, gradients, steps, rate):
    for _ in range(steps): w = w - rate * np.mean([gradient(w) for gradient in gradients], axis=0)
    return w


def _flat(state): return torch.cat([t.double().flatten() for t in state.values()])


def _drift(start, states, weights):
    ends = [_flat(state) for state in states]
    mean = sum(n * end for n, end in zip(weights, ends)) / sum(weights)
    return ends, mean, (mean - _flat(start)).norm()


def drift__right_client_by_client(start, states, weights):
    ends, mean, way = _drift(start, states, weights)
    total = sum(n * (end - mean).norm() for n, end in zip(weights, ends))
    return float(total / (sum(weights) * way))


def drift__wrong_plain_mean_of_the_distances(start, states, weights):
    ends, mean, way = _drift(start, states, weights)
    return float(sum((end - mean).norm() for end in ends) / len(ends) / way)


def drift__wrong_plain_mean_of_the_ends(start, states, weights):
    ends, mean, way = _drift(start, states, [1] * len(states))
    total = sum(n * (end - mean).norm() for n, end in zip(weights, ends))
    return float(total / (sum(weights) * way))


def drift__wrong_squares(start, states, weights):
    ends, mean, way = _drift(start, states, weights)
    total = sum(n * (end - mean).norm() ** 2 for n, end in zip(weights, ends))
    return float(total / (sum(weights) * way ** 2))


def drift__wrong_tensor_by_tensor(start, states, weights):
    parts = [drift__right_client_by_client({name: start[name]}, [{name: s[name]} for s in states], weights)
             for name in start]
    return float(np.mean(parts))


def proximal__right_one_long_vector(parameters, anchor, mu):
    long = torch.cat([p.flatten() for p in parameters]) - torch.cat([a.flatten() for a in anchor])
    return mu / 2 * long @ long


def proximal__wrong_without_the_half(parameters, anchor, mu):
    return mu * sum(((p - a) ** 2).sum() for p, a in zip(parameters, anchor))


def proximal__wrong_not_squared(parameters, anchor, mu):
    return mu / 2 * sum(((p - a) ** 2).sum() for p, a in zip(parameters, anchor)).sqrt()


def proximal__wrong_a_number_without_gradient(parameters, anchor, mu):
    return mu / 2 * sum(((p - a) ** 2).sum().item() for p, a in zip(parameters, anchor))


def proximal__wrong_detached(parameters, anchor, mu):
    return mu / 2 * sum(((p.detach() - a) ** 2).sum() for p, a in zip(parameters, anchor))


def proximal__wrong_mean_over_the_tensors(parameters, anchor, mu):
    return mu / 2 * sum(((p - a) ** 2).mean() for p, a in zip(parameters, anchor))


def _fit(model, batches, start, own, shared, lr, bracket, renew=True):
    model.load_state_dict(start)
    for x, y in batches:
        if renew: model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for name, p in model.named_parameters(): p -= lr * bracket(name, p.grad)
    end = {name: t.clone() for name, t in model.state_dict().items()}
    return end, {name: own[name] - shared[name] + (start[name] - end[name]) / (len(batches) * lr) for name in own}


def scaffold_fit__right_sgd_and_mean_gradient(model, batches, start, own, shared, lr):
    model.load_state_dict(start)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    met = {name: 0 for name in own}
    for x, y in batches:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for name, p in model.named_parameters():
            met[name] = met[name] + p.grad / len(batches)
            p.grad = p.grad + shared[name] - own[name]
        optimiser.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}, met


def scaffold_fit__wrong_signs_exchanged(model, batches, start, own, shared, lr):
    return _fit(model, batches, start, own, shared, lr, lambda name, g: g + own[name] - shared[name])


def scaffold_fit__wrong_own_forgotten(model, batches, start, own, shared, lr):
    return _fit(model, batches, start, own, shared, lr, lambda name, g: g + shared[name])


def scaffold_fit__wrong_gradients_add_up(model, batches, start, own, shared, lr):
    return _fit(model, batches, start, own, shared, lr, lambda name, g: g - own[name] + shared[name], renew=False)


def scaffold_fit__wrong_from_where_the_model_stood(model, batches, start, own, shared, lr):
    now = {name: t.clone() for name, t in model.state_dict().items()}
    return _fit(model, batches, now, own, shared, lr, lambda name, g: g - own[name] + shared[name])


def scaffold_fit__wrong_old_variate(model, batches, start, own, shared, lr):
    end, _ = _fit(model, batches, start, own, shared, lr, lambda name, g: g - own[name] + shared[name])
    return end, own


def control_update__right_step_by_step(own, shared, start, end, steps, lr):
    new = {}
    for name, t in end.items():
        way = start[name] - t
        new[name] = way / steps / lr + own[name] - shared[name]
    return new


def control_update__wrong_way_reversed(own, shared, start, end, steps, lr):
    return {name: own[name] - shared[name] + (end[name] - start[name]) / (steps * lr) for name in own}


def control_update__wrong_steps_forgotten(own, shared, start, end, steps, lr):
    return {name: own[name] - shared[name] + (start[name] - end[name]) / lr for name in own}


def control_update__wrong_without_the_variates(own, shared, start, end, steps, lr):
    return {name: (start[name] - end[name]) / (steps * lr) for name in own}


def momentum_step__right_by_torch(weights, mean, velocity, beta):
    moved, speed = {}, {}
    for name, t in weights.items():
        speed[name] = (velocity[name] * beta).add(t).sub(mean[name])
        moved[name] = t.sub(speed[name])
    return moved, speed


def momentum_step__wrong_damped(weights, mean, velocity, beta):
    speed = {n: beta * velocity[n] + (1 - beta) * (weights[n] - mean[n]) for n in weights}
    return {n: weights[n] - speed[n] for n in weights}, speed


def momentum_step__wrong_from_the_mean(weights, mean, velocity, beta):
    speed = {n: beta * velocity[n] + weights[n] - mean[n] for n in weights}
    return {n: mean[n] - speed[n] for n in weights}, speed


def momentum_step__wrong_old_velocity(weights, mean, velocity, beta):
    speed = {n: beta * velocity[n] + weights[n] - mean[n] for n in weights}
    return {n: mean[n] - velocity[n] for n in weights}, speed


def remedied_round__right_by_walks(w, own, velocity, gradients, steps, rate, mu, beta):
    ends = np.empty_like(own)
    for k, gradient in enumerate(gradients):
        force = lambda p: gradient(p) + mu * (p - w) - own[k] + own.mean(0)
        ends[k] = walk__right_counted(w, force, steps, rate)[-1]
    speed = w - ends.mean(0) + beta * velocity
    return w - speed, own - own.mean(0) + (w - ends) / steps / rate, speed


def _remedied(w, own, velocity, gradients, steps, rate, mu, beta, sign=1, moving=False, old=False):
    shared = np.mean(own, axis=0)
    ends = []
    for gradient, c in zip(gradients, own):
        end = w
        for _ in range(steps):
            anchor = end if moving else w
            end = end - rate * (gradient(end) + mu * (end - anchor) - sign * (c - shared))
        ends.append(end)
    renewed = own if old else own - shared + (w - np.stack(ends)) / (steps * rate)
    speed = beta * velocity + w - np.mean(ends, axis=0)
    return w - speed, renewed, speed


def remedied_round__wrong_signs_exchanged(*args): return _remedied(*args, sign=-1)


def remedied_round__wrong_anchor_moves_along(*args): return _remedied(*args, moving=True)


def remedied_round__wrong_old_variates(*args): return _remedied(*args, old=True)


def remedied_round__wrong_from_the_mean(w, *args):
    point, own, speed = _remedied(w, *args)
    return point - speed, own, speed


def remedied_round__wrong_old_velocity(w, own, velocity, *args):
    _, renewed, speed = _remedied(w, own, velocity, *args)
    return w - velocity, renewed, speed
