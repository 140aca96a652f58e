//! Protocol radii and the data behind them.

mod data_file;
mod radii;
