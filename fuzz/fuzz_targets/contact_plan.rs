#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bentpipe_dtn::fuzzing::contact_plan(data));
