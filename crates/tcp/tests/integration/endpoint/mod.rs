//! The endpoint against timelines and closed forms.

mod rack;
mod recovery;
mod spurious;
mod timeline;
mod timers;
