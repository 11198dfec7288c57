//! The HTTP API: ask for an export, and look how far it is.

use std::net::{Ipv4Addr, SocketAddr};

use actix_web::dev::Server;
use actix_web::http::StatusCode;
use actix_web::web::{Data, Json, JsonConfig, Path};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, ResponseError, get, post};
use diesel::prelude::*;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::{Pool, PoolError};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use serde::{Deserialize, Serialize};
use tidings::NewEvent;
use uuid::Uuid;

use crate::messages::StartExport;
use crate::tables::job;

/// The body of `POST /exports`. A field we do not know is refused rather than ignored: two requests that differ in it
/// would be taken for the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportRequest {
    pub(crate) tenant: String,
    pub(crate) dataset: String,
    pub(crate) rows: i32,
}

/// What is known of a job.
#[derive(Debug, Serialize, Queryable, Selectable)]
#[diesel(table_name = job)]
struct Job {
    id: String,
    tenant: String,
    dataset: String,
    rows: i32,
    state: String,
    file: Option<String>,
}

/// `POST /exports` with an `Idempotency-Key`: 201 the first time, 200 with the same job for every repeat, 409 if the key
/// comes with another body.
#[post("/exports")]
async fn ask(
    pool: Data<Pool<AsyncPgConnection>>,
    http: HttpRequest,
    Json(request): Json<ExportRequest>,
) -> Result<HttpResponse, Problem> {
    let key = http.headers().get("Idempotency-Key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    if key.is_empty() || key.len() > 200 {
        return Err(Problem::Key);
    }
    let named = |name: &str| (1..=200).contains(&name.len()) && !name.contains('\0');
    if !named(&request.tenant) || !named(&request.dataset) || !(0..=10_000).contains(&request.rows) {
        return Err(Problem::Request);
    }
    let mut conn = pool.get().await?;
    let (status, job) = job_of(&mut conn, key, request).await?;
    let place = format!("/exports/{}", job.id);
    Ok(HttpResponse::build(status).insert_header(("Location", place)).json(job))
}

/// The job of this key, made now if there is none. Job and command commit together or not at all: there is no job that
/// nobody works on, and no work on a job that does not exist.
async fn job_of(conn: &mut AsyncPgConnection, key: &str, request: ExportRequest) -> Result<(StatusCode, Job), Problem> {
    let number = Uuid::now_v7();
    let ExportRequest { tenant, dataset, rows } = request;
    tidings::transaction(conn, async |tx| {
        // If the same key is just being inserted by somebody else, this waits until that one has committed or given up.
        let made: Option<Job> = diesel::insert_into(job::table)
            .values((
                job::id.eq(format!("job-{number}")),
                job::idempotency_key.eq(key),
                job::tenant.eq(&tenant),
                job::dataset.eq(&dataset),
                job::rows.eq(rows),
            ))
            .on_conflict(job::idempotency_key)
            .do_nothing()
            .returning(Job::as_returning())
            .get_result(tx.conn())
            .await
            .optional()?;
        if let Some(job) = made {
            let command = StartExport { job_id: job.id.clone(), tenant, dataset, rows };
            // The id could be left to the framework; made of the job's, it is easy to follow through log and tables.
            tx.append(NewEvent::of(&command)?.id(format!("cmd-{number}"))).await?;
            return Ok((StatusCode::CREATED, job));
        }
        let job: Job =
            job::table.filter(job::idempotency_key.eq(key)).select(Job::as_select()).first(tx.conn()).await?;
        if (&job.tenant, &job.dataset, job.rows) == (&tenant, &dataset, rows) {
            Ok((StatusCode::OK, job))
        } else {
            Err(Problem::OtherRequest)
        }
    })
    .await
}

/// `GET /exports/{id}`: state and result.
#[get("/exports/{id}")]
async fn look(pool: Data<Pool<AsyncPgConnection>>, id: Path<String>) -> Result<HttpResponse, Problem> {
    if id.contains('\0') {
        return Err(Problem::NoSuchExport);
    }
    let mut conn = pool.get().await?;
    let job = job::table.find(id.as_str()).select(Job::as_select()).first(&mut conn).await.optional()?;
    job.map(|job: Job| HttpResponse::Ok().json(job)).ok_or(Problem::NoSuchExport)
}

/// Listens on a free port of the loopback interface.
pub(crate) fn listen(database_url: &str) -> std::io::Result<(Server, SocketAddr)> {
    let url = database_url.to_owned();
    let server = HttpServer::new(move || {
        // actix-web calls this once on each worker. A connection lives on the runtime that opened it, so each worker has
        // a pool of its own.
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&url);
        let pool = Pool::builder(manager).max_size(4).build().expect("a pool without timeouts needs no runtime");
        let json = JsonConfig::default().error_handler(|error, _| Problem::Json(error.to_string()).into());
        App::new().app_data(Data::new(pool)).app_data(json).service(ask).service(look)
    })
    .workers(2)
    .shutdown_timeout(5)
    // Ctrl-C ends the whole program in its own order, see `main.rs`.
    .disable_signals()
    .bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = server.addrs()[0];
    Ok((server.run(), address))
}

/// Why there is no answer. What only concerns us goes to the log.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("the header Idempotency-Key is missing, empty or over 200 bytes; choose a new one for each new export")]
    Key,
    #[error("tenant and dataset must have 1 to 200 bytes, none of them NUL, and rows must be from 0 to 10000")]
    Request,
    #[error("the body is not as expected: {0}")]
    Json(String),
    #[error("this Idempotency-Key belongs to another request; choose a new one for each new export")]
    OtherRequest,
    #[error("there is no such export")]
    NoSuchExport,
    #[error("not possible just now; try again with the same Idempotency-Key")]
    Database(#[from] diesel::result::Error),
    #[error("not possible just now; try again with the same Idempotency-Key")]
    Pool(#[from] PoolError),
    #[error("this export cannot be asked for: {0}")]
    Append(#[from] tidings::append::Error),
    #[error("this export cannot be asked for: {0}")]
    Invalid(#[from] tidings::event::Invalid),
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        match self {
            Problem::Key | Problem::Request | Problem::Json(_) | Problem::Invalid(_) => StatusCode::BAD_REQUEST,
            Problem::OtherRequest => StatusCode::CONFLICT,
            Problem::NoSuchExport => StatusCode::NOT_FOUND,
            Problem::Database(_) | Problem::Pool(_) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Append(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        match self {
            Problem::Database(error) => tracing::warn!(%error, "a request could not be answered"),
            Problem::Pool(error) => tracing::warn!(%error, "a request could not be answered"),
            Problem::Append(error) => tracing::error!(%error, "a command could not be appended"),
            _ => {}
        }
        HttpResponse::build(self.status_code()).json(serde_json::json!({ "error": self.to_string() }))
    }
}
