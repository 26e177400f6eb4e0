//! Shapes of input, and what the decoder makes of bytes that are no log.
