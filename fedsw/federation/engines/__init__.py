"""Engines, which carry messages between server and clients: in process, on Ray, or real processes; parallel work."""

from typing import Literal

Engine = Literal["inprocess", "ray", "flwr", "deployed"]
