//! Compiles the arithmetic that the kernel's congestion controls and this crate share (`core/`), and declares
//! its structs and enumerations in Rust (`congestion::c_core`).

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=core");
    cc::Build::new().file("core/core.c").std("gnu11").opt_level(2).warnings(true).compile("bentpipe_core");
    let mut rust = String::new();
    for header in ["core", "aqm_core", "explicit_core", "hybla_core", "xcp_core"] {
        let text = fs::read_to_string(format!("core/{header}.h")).expect("a file of this crate");
        declare(&without_comments(&text), &mut rust);
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(folder.join("c_core.rs"), rust).expect("cargo's folder takes a file");
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let code = parts.next().unwrap_or_default().to_owned();
    parts.fold(code, |code, part| code + part.split_once("*/").map_or("", |(_, rest)| rest))
}

/// Structs and enumerations stand by themselves in the headers, and end at a brace of their own.
fn declare(text: &str, rust: &mut String) {
    for block in text.split("\n}") {
        if let Some((_, fields)) = block.split_once("\nenum {") {
            declare_enumeration(fields, rust);
        } else if let Some((_, text)) = block.rsplit_once("\nstruct ")
            && let Some((name, fields)) = text.split_once(" {\n")
            && !name.contains('(')
        {
            declare_struct(name, fields, rust);
        }
    }
}

/// Each name is one more than the one before unless it has a value.
fn declare_enumeration(names: &str, rust: &mut String) {
    let mut next = "0".to_owned();
    for entry in names.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, value) = entry.split_once(" = ").unwrap_or((entry, &next));
        let name = name.to_uppercase();
        *rust += &format!("pub const {name}: u32 = {value};\n");
        next = format!("{name} + 1");
    }
}

/// `struct hybla_socket` is `HyblaSocket`; `struct hybla`, its state, is `HyblaState`.
fn declare_struct(name: &str, fields: &str, rust: &mut String) {
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    let camel = words.collect::<String>() + if name.contains('_') { "" } else { "State" };
    *rust += "#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]\n#[repr(C)]\n";
    *rust += &format!("pub struct {camel} {{\n");
    let mut sizes = Vec::new();
    for field in fields.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (kind, field) = field.split_once(' ').expect("a type and a name");
        let kind = kind.replace('s', "i");
        let (field, kind) = match field.split_once('[') {
            Some((field, length)) => (field, format!("[{kind}; {length}")),
            None => (field, kind),
        };
        *rust += &format!("    pub {field}: {kind},\n");
        sizes.push(format!("size_of::<{kind}>()"));
    }
    let sizes = sizes.join(" + ");
    *rust += &format!("}}\nconst _: () = assert!(size_of::<{camel}>() == {sizes}, \"no padding\");\n");
}
