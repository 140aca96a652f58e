//! Tables in Arrow's memory layout, which pandas, polars and pyarrow take without a copy.

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder};
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use bentpipe_sim::columns::{self, Kind, Value};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

use crate::column::Column;

// The names of the PyCapsule interface of Arrow.
const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";

/// Rows and columns. It has the interface of Arrow (`__arrow_c_stream__`).
#[pyclass(frozen, module = "bentpipe._core")]
pub(crate) struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl Table {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface leaves it to the producer whether it can give another schema.
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok::<_, ArrowError>);
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(|error| failed(&error))?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __getitem__(&self, name: &str) -> PyResult<Column> {
        let index = self.schema.index_of(name).map_err(|_| {
            PyKeyError::new_err(format!(
                "there is no column {name}; there is {}",
                self.column_names().join(", ")
            ))
        })?;
        let batch = self.joined()?;
        Ok(Column::new(batch.column(index).clone()))
    }

    /// The rows of these tables, one table after the other. All have the same columns.
    #[staticmethod]
    fn concat(py: Python<'_>, tables: Vec<Py<Table>>) -> PyResult<Table> {
        let [first, ..] = &tables[..] else {
            return Err(PyValueError::new_err("there is no table to begin with"));
        };
        let schema = first.get().schema.clone();
        if tables.iter().any(|table| table.get().schema != schema) {
            return Err(PyValueError::new_err("the tables have different columns"));
        }
        let tables: Vec<&Table> = tables.iter().map(Py::get).collect();
        py.detach(|| {
            let batches: Vec<RecordBatch> = tables.iter().flat_map(|table| table.batches.clone()).collect();
            Table { schema, batches }.joined().map(Table::of)
        })
    }

    /// As the bytes of a stream of Arrow's IPC format.
    fn to_ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let write = || {
            let mut writer = StreamWriter::try_new(Vec::new(), &self.schema)?;
            self.batches.iter().try_for_each(|batch| writer.write(batch))?;
            writer.into_inner()
        };
        let bytes: Result<Vec<u8>, ArrowError> = write();
        Ok(PyBytes::new(py, &bytes.map_err(|error| failed(&error))?))
    }

    #[staticmethod]
    fn from_ipc(bytes: &[u8]) -> PyResult<Table> {
        let read = || {
            let reader = StreamReader::try_new(bytes, None)?;
            let schema = reader.schema();
            Ok(Table { schema, batches: reader.collect::<Result<_, _>>()? })
        };
        read().map_err(|error| failed(&error))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<Table>().getattr("from_ipc")?, (self.to_ipc(py)?,)))
    }
}

fn failed(error: &ArrowError) -> PyErr {
    PyValueError::new_err(format!("the table cannot be passed on: {error}"))
}

impl Table {
    fn of(batch: RecordBatch) -> Self {
        Self { schema: batch.schema(), batches: vec![batch] }
    }

    /// All rows in one piece.
    fn joined(&self) -> PyResult<RecordBatch> {
        match &self.batches[..] {
            [only] => Ok(only.clone()),
            batches => {
                arrow_select::concat::concat_batches(&self.schema, batches).map_err(|error| failed(&error))
            }
        }
    }
}

/// Builds a table row by row.
#[derive(Debug)]
pub(crate) struct Rows {
    fields: Vec<Field>,
    columns: Vec<Builder>,
}

#[derive(Debug)]
enum Builder {
    Text(StringBuilder),
    Count(Int64Builder),
    Seed(UInt64Builder),
    Number(Float64Builder),
    Flag(BooleanBuilder),
}

impl Rows {
    /// No rows, with these columns.
    pub(crate) fn new(schema: &columns::Schema) -> Self {
        let mut rows = Self { fields: Vec::new(), columns: Vec::new() };
        schema.columns.iter().for_each(|column| rows.add_column(column.name, column.kind));
        rows
    }

    /// The same behind columns of whole numbers, of seeds, and of texts.
    pub(crate) fn behind(counts: &[&str], seed: &str, texts: &[String], schema: &columns::Schema) -> Self {
        let mut rows = Self { fields: Vec::new(), columns: Vec::new() };
        counts.iter().for_each(|name| rows.add_column(name, Kind::Count));
        rows.add(seed, DataType::UInt64, Builder::Seed(UInt64Builder::new()));
        texts.iter().for_each(|name| rows.add_column(name, Kind::Text));
        schema.columns.iter().for_each(|column| rows.add_column(column.name, column.kind));
        rows
    }

    fn add_column(&mut self, name: &str, kind: Kind) {
        match kind {
            Kind::Text => self.add(name, DataType::Utf8, Builder::Text(StringBuilder::new())),
            Kind::Count => self.add(name, DataType::Int64, Builder::Count(Int64Builder::new())),
            Kind::Number => self.add(name, DataType::Float64, Builder::Number(Float64Builder::new())),
            Kind::Flag => self.add(name, DataType::Boolean, Builder::Flag(BooleanBuilder::new())),
        }
    }

    fn add(&mut self, name: &str, data_type: DataType, builder: Builder) {
        self.fields.push(Field::new(name, data_type, true));
        self.columns.push(builder);
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If a value is not of its column's kind: the columns and the rows are of one table.
    pub(crate) fn push<'a>(&mut self, row: impl IntoIterator<Item = Value<'a>>) {
        let mut row = row.into_iter();
        for (column, value) in self.columns.iter_mut().zip(&mut row) {
            column.push(value);
        }
        assert!(row.next().is_none(), "a row has a value for each column");
    }

    pub(crate) fn finish(mut self) -> Table {
        let schema = Arc::new(Schema::new(self.fields));
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(Builder::finish).collect();
        let batch = RecordBatch::try_new(schema, columns).expect("the columns are built together");
        Table::of(batch)
    }
}

impl Builder {
    fn push(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::Text(column), Value::Text(text)) => column.append_value(text),
            // A count of what a simulation does is far below 2⁶³.
            (Self::Count(column), Value::Count(count)) => column.append_value(count as i64),
            (Self::Seed(column), Value::Count(count)) => column.append_value(count),
            (Self::Number(column), Value::Number(number)) => column.append_value(number),
            (Self::Flag(column), Value::Flag(flag)) => column.append_value(flag),
            (Self::Text(column), Value::Missing) => column.append_null(),
            (Self::Count(column), Value::Missing) => column.append_null(),
            (Self::Seed(column), Value::Missing) => column.append_null(),
            (Self::Number(column), Value::Missing) => column.append_null(),
            (Self::Flag(column), Value::Missing) => column.append_null(),
            (column, value) => panic!("{value:?} is no value of {column:?}"),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(column) => Arc::new(column.finish()),
            Self::Count(column) => Arc::new(column.finish()),
            Self::Seed(column) => Arc::new(column.finish()),
            Self::Number(column) => Arc::new(column.finish()),
            Self::Flag(column) => Arc::new(column.finish()),
        }
    }
}
