"""Learning with optimal-transport losses on private data that stays where it is.

The mathematics: slices and rank matching (`fedsw.sliced`), clipping without Jacobians (`fedsw.clipping`),
sensitivities (`fedsw.sensitivity`), accounting (`fedsw.accounting`), local mechanisms (`fedsw.mechanisms`,
`fedsw.local`), objectives, models, metrics and data. Nothing here knows about the network.
"""
