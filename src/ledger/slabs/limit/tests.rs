//! Rows of one limit's life.
