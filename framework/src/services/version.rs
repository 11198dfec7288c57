use std::fmt;

/// The version of a server, such as 15.18 or 2.15.1.
///
/// Ordered by its numbers. What follows the numbers (`-RC.1`, `beta2`, a distribution's suffix) is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number; 0 where there is none.
    pub minor: u32,
    /// The third number, where there is one.
    pub patch: Option<u32>,
}

impl Version {
    /// Finds the version in the answer to `--version`: the first word that begins with a digit, or with `v` and a digit.
    pub(super) fn find(answer: &str) -> Option<Version> {
        answer.split_whitespace().find_map(|word| {
            let word = word.strip_prefix('v').unwrap_or(word);
            let mut numbers = word.split('.').map_while(leading_number);
            Some(Version { major: numbers.next()?, minor: numbers.next().unwrap_or(0), patch: numbers.next() })
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        match self.patch {
            Some(patch) => write!(f, ".{patch}"),
            None => Ok(()),
        }
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(answer: &str) -> String {
        Version::find(answer).map_or_else(|| "none".to_owned(), |version| version.to_string())
    }

    #[test]
    fn versions_are_read_from_what_servers_answer() {
        assert_eq!(found("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), "15.18");
        assert_eq!(found("postgres (PostgreSQL) 19beta1"), "19.0");
        assert_eq!(found("nats-server: v2.15.1\n"), "2.15.1");
        assert_eq!(found("nats-server: v2.12.0-RC.1"), "2.12.0");
        assert_eq!(found("no such thing"), "none");
    }

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        assert!(Version::find("v2.9.10") < Version::find("v2.12.0"));
        assert!(Version::find("13.20") < Version::find("14.0"));
    }
}
