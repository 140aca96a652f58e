#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bentpipe_protect::fuzzing::headers(data));
