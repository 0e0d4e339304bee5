"""The ServerApp (`app`) and the loop of a run (`federation.federate`)."""
