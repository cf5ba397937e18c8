//! Compiles proto/ in Rust: descriptors for reflection and JSON, code for the lease API. Nobody needs protoc.

use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: &[&str] = &["proto/envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(())
}
