//! The endpoint against timelines and closed forms.

mod recovery;
mod timeline;
mod timers;
