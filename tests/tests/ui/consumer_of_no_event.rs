use tidings::Consumer;

struct ExportCompleted;

#[derive(Consumer)]
#[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted))]
struct Statistics;

fn main() {}
