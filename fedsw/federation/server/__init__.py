"""The ServerApp (`app`) and the loop of a run (`_federation.federate`)."""
