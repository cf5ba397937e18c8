//! Which files a command reads: the same flags for all that read any.

use std::path::PathBuf;

use clap::Args;

use crate::config::{self, DEFAULT_DIR, Layout, LimitsIn, Loaded, Problem};

#[derive(Debug, Args)]
pub(super) struct ConfigDir {
    /// Where sluice.yaml, limits/ and retry_policy.yaml are [default: config, if it is there]
    #[arg(long, env = "SLUICE_CONFIG_DIR", value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Where the limits files are, if not in limits/ of that directory
    #[arg(long, env = "SLUICE_LIMITS_DIR", value_name = "DIR")]
    limits_dir: Option<PathBuf>,
}

impl ConfigDir {
    /// Everything, read and checked.
    pub(super) fn load(&self) -> Result<Loaded, Vec<Problem>> {
        config::load_layout(&self.there())
    }

    /// Where everything is that is read once: the default directory need not be there.
    pub(super) fn there(&self) -> Layout {
        let layout = self.layout();
        let dir = layout.dir.filter(|dir| self.config_dir.is_some() || dir.exists());
        Layout { dir, limits: layout.limits }
    }

    /// Where to look for changes.
    pub(super) fn layout(&self) -> Layout {
        let dir = self.config_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DIR));
        let Some(limits) = self.limits_dir.clone() else { return dir.into() };
        let dir = Some(dir).filter(|dir| self.config_dir.is_some() || dir.exists());
        Layout { dir, limits: LimitsIn::Other(limits) }
    }
}
