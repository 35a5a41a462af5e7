//! Lists the instructions of PTX files that the emulator does not know.

fn main() {
    for file in std::env::args().skip(1) {
        let source = std::fs::read_to_string(&file).expect("read the file");
        match gpusim::unknown_instructions(&source) {
            Ok(lines) => {
                println!("{file}: {} unknown instructions", lines.len());
                lines.iter().for_each(|(line, text)| println!("  {line}: {text}"));
            }
            Err(message) => println!("{file}: {message}"),
        }
    }
}
