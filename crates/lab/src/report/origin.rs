//! Where results were made.

use std::fs;

use serde::{Deserialize, Serialize};

/// Where and when results were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The machine.
    pub machine: Machine,
    /// When the experiment began: UTC, RFC 3339.
    pub began: String,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A machine, and the bentpipe on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The version of bentpipe.
    pub version: String,
    /// The kernel's release: `6.18.0`.
    pub kernel: String,
    /// The architecture: `x86_64`.
    pub architecture: String,
    /// How many CPUs the process may use.
    pub cpus: usize,
    /// The name of the processor, where the kernel tells it.
    pub processor: Option<String>,
}

impl Machine {
    /// The machine on which this runs.
    pub fn this() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: crate::kernel_release(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            processor: fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| processor(&text)),
        }
    }

    /// `bentpipe 0.1.0, Linux 6.18.0 on x86_64, 2 CPUs (NAME)`.
    pub(super) fn describe(&self) -> String {
        let Self { version, kernel, architecture, cpus, processor } = self;
        let plural = if *cpus == 1 { "" } else { "s" };
        let processor = processor.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        format!("bentpipe {version}, Linux {kernel} on {architecture}, {cpus} CPU{plural}{processor}")
    }
}

/// The first processor's name in `/proc/cpuinfo`. Some architectures have none.
fn processor(cpuinfo: &str) -> Option<String> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut names = fields.filter(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim());
    names.find(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_the_first_with_a_name() {
        let text = "processor\t: 0\nmodel name\t: \nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(processor(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(processor("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
    }
}
