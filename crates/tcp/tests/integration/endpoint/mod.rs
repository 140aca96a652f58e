//! The endpoint against timelines and closed forms.

mod autotuning;
mod bursts;
mod metrics;
mod rack;
mod recovery;
mod spurious;
mod timeline;
mod timers;
