//! The files in `config/`: read, checked as a whole, turned into what the rest of Sluice works with.

pub mod decode;
pub mod files;
pub mod limits;
pub mod problem;
pub mod retry;
pub mod scalar;
pub mod settings;
pub mod shape;
pub mod tree;
pub mod yaml;
