//! Statements that are prepared once a connection.
//!
//! Diesel caches a statement only if its type says that its text never changes. The text of these stands in one place,
//! with `{name}` where a field is bound; arrays carry batches through `unnest`.

/// Declares a statement: its fields with their SQL types, what a row of it is, and its text.
macro_rules! statement {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $($field:ident: $sql_type:ty = $rust_type:ty),* $(,)? }
        -> $row:ty;
        $text:literal
    ) => {
        $(#[$meta])*
        #[derive(Clone)]
        $vis struct $name { $($vis $field: $rust_type),* }

        impl ::diesel::query_builder::QueryId for $name {
            type QueryId = $name;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl ::diesel::query_builder::Query for $name {
            type SqlType = $row;
        }

        impl<C> ::diesel::RunQueryDsl<C> for $name {}

        impl ::diesel::query_builder::QueryFragment<::diesel::pg::Pg> for $name {
            #[allow(unreachable_code, unused_mut, unused_variables, reason = "a statement may have no field")]
            fn walk_ast<'b>(
                &'b self,
                mut out: ::diesel::query_builder::AstPass<'_, 'b, ::diesel::pg::Pg>,
            ) -> ::diesel::QueryResult<()> {
                let mut rest: &str = $text;
                while let Some((before, after)) = rest.split_once('{') {
                    let (name, after) = after.split_once('}').unwrap_or((after, ""));
                    out.push_sql(before);
                    match name {
                        $(stringify!($field) => out.push_bind_param::<$sql_type, _>(&self.$field)?,)*
                        unknown => return Err(::diesel::result::Error::QueryBuilderError(
                            format!("{} has no field {unknown}", stringify!($name)).into(),
                        )),
                    }
                    rest = after;
                }
                out.push_sql(rest);
                Ok(())
            }
        }
    };
}

pub(crate) use statement;
