//! What goes back when.
