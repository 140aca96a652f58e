//! scratch
mod handshake;
mod ns3;
mod scene;
mod single_flow;
mod speed;
mod trace;
use single_flow::{HYBLA, Losses, PAIRS, compare, table};
fn main() {
    let arg: Vec<String> = std::env::args().collect();
    let ns3 = ns3::Ns3::new("target/ns3");
    match arg[1].as_str() {
        "trace" => {
            let pair = &single_flow::PAIRS[arg[2].parse::<usize>().unwrap()];
            let per: f64 = arg[3].parse().unwrap();
            let seed: u64 = arg[4].parse().unwrap();
            trace::ours(pair, per, seed, "/tmp/ours.csv".as_ref()).unwrap();
            println!(
                "{} --trace=/tmp/ns3.csv --drop={}",
                pair.ns3.join(" "),
                single_flow::lost_packets(per, seed).join(",")
            );
        }
        "speed" => println!("{}", speed::table(&speed::compare(&ns3, 5).unwrap()).to_text()),
        "handshake" => println!("{}", handshake::table(&handshake::compare(&ns3).unwrap()).to_text()),
        "hybla" => println!("{}", table(&compare(&ns3, HYBLA, 5, Losses::Data).unwrap(), "Hybla").to_text()),
        seeds => {
            let rows = compare(&ns3, PAIRS, seeds.parse().unwrap(), Losses::Data).unwrap();
            println!("{}", table(&rows, "PER on data").to_text());
        }
    }
}
