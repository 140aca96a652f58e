//! Virtual time: golden tables, and transfers held against closed forms.

mod golden;
mod world;
