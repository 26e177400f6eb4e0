//! `farrier plan`.

mod figures;
#[cfg_attr(not(test), expect(dead_code, reason = "the command is not there yet"))]
mod page;
