"""The default path beside other private models, by public tools at settings of their own."""
