//! `farrier plan`.

mod page;
