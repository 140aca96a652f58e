#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bentpipe_ltp::fuzzing::segment(data);
    bentpipe_ltp::fuzzing::engine(data);
});
