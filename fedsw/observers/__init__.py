"""Observers that pass a run's releasable numbers on: several at once, to MLflow, to Weights & Biases."""

from fedsw.observers.mlflow import MlflowObserver
from fedsw.observers.several import Observers
from fedsw.observers.wandb import WandbObserver

__all__ = ["MlflowObserver", "Observers", "WandbObserver"]
