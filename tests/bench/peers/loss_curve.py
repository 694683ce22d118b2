"""Two loss curves of one training, side by side: Millrace's and its peer's, from equal
weights on equal batches.

    loss_curve.py RUN/metrics.jsonl PEER.jsonl [--window 20] [--allowed 0.02]

Both files hold one object a step with "step" and "loss"; pytorch_llama_gpu.py --losses
writes the second. bf16 makes single steps differ by noise, so the moving averages over
`window` steps are compared. Exits 1 if they differ by more than `allowed` nats.
"""

import argparse
import json
import math
import sys


def read_losses(path):
    """Loss by step; the last line of a step counts, since recoveries repeat steps."""
    losses = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            losses[entry["step"]] = entry["loss"]
    return losses


def moving_averages(losses, steps, window):
    """By the last step of each full window."""
    averages, total = {}, 0.0
    for i, step in enumerate(steps):
        total += losses[step]
        if i >= window:
            total -= losses[steps[i - window]]
        if i >= window - 1:
            averages[step] = total / window
    return averages


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours")
    parser.add_argument("peer")
    parser.add_argument("--window", type=int, default=20, help="steps of the moving average")
    parser.add_argument("--allowed", type=float, default=0.02, help="nats")
    arguments = parser.parse_args()
    ours, peer = read_losses(arguments.ours), read_losses(arguments.peer)
    steps = sorted(ours.keys() & peer.keys())
    if len(steps) < arguments.window or steps != list(range(steps[0], steps[-1] + 1)):
        sys.exit(f"loss_curve.py: {len(steps)} steps in common; expected at least "
                 f"{arguments.window} without a gap")
    smooth_ours = moving_averages(ours, steps, arguments.window)
    smooth_peer = moving_averages(peer, steps, arguments.window)
    print(f"  step      ours      peer   ours - peer   the same over {arguments.window} steps")
    marks = set(steps[::max(1, len(steps) // 12)]) | {steps[-1]}
    for step in sorted(marks):
        smooth = (f"{smooth_ours[step]:.4f}  {smooth_peer[step]:.4f}  "
                  f"{smooth_ours[step] - smooth_peer[step]:+.4f}" if step in smooth_ours else "")
        print(f"{step:6d}  {ours[step]:8.4f}  {peer[step]:8.4f}      {ours[step] - peer[step]:+.4f}"
              f"   {smooth}")
    worst_step = max(smooth_ours, key=lambda step: abs(smooth_ours[step] - smooth_peer[step]))
    worst = smooth_ours[worst_step] - smooth_peer[worst_step]
    single = max(abs(ours[step] - peer[step]) for step in steps)
    print(f"{len(steps)} steps; largest difference of a step {single:.4f}, of the moving average "
          f"{worst:+.4f} (step {worst_step}), allowed {arguments.allowed}")
    finite = all(math.isfinite(ours[step]) and math.isfinite(peer[step]) for step in steps)
    sys.exit(0 if finite and abs(worst) <= arguments.allowed else 1)


if __name__ == "__main__":
    main()
