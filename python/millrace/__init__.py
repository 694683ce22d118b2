"""Millrace from Python: a training step that Millrace planned, and its GPU kernels.

    trainer = millrace.Trainer("job.yaml")
    result = trainer.step()

`millrace.kernels` has attention, RMSNorm and linear cross entropy as functions of
PyTorch. docs/python.md is the guide. Needs Python 3.8 and nothing else; PyTorch and
NumPy are used where the caller brings their tensors.
"""

from millrace._library import Error
from millrace.trainer import Info, StatePiece, StepResult, Trainer

__all__ = ["Error", "Info", "StatePiece", "StepResult", "Trainer"]
