package pricing

import (
	"bytes"
	_ "embed" // the catalogue
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ErrCatalogue is wrapped by the error of every catalogue that is refused for what it says.
var ErrCatalogue = errors.New("no catalogue of prices")

// Bounds of what is read.
const (
	mostBytes  = 16 << 20
	mostCPU    = 10_000 * quantity.Core
	mostMemory = 1 << 50
	mostGPUs   = 1000
	mostText   = 400 // bytes of a field
)

// Functions have any number of MiB from 128, https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
const leastFunctionMemory = 128 * quantity.MiB

// The columns of a catalogue's file, in this order.
var columns = []string{
	"kind", "provider", "region", "name", "cpu_milli", "memory_bytes", "gpu_class", "gpus", "gpu_memory_bytes",
	"price_usd", "unit", "dated", "source", "valid_until",
}

var (
	kinds       = []Kind{OnDemandHost, SpotHost, Function, Container, StorageRequest, StorageMonth}
	namePattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,99}$`)
)

//go:embed prices.csv
var embedded []byte

// Default returns the embedded catalogue: AWS's list prices in us-east-1, each with its date and source. It knows no
// day on which it expires: show Row.Dated beside a price.
func Default() Catalogue {
	catalogue, err := Parse(bytes.NewReader(embedded), time.Time{})
	if err != nil {
		panic(fmt.Sprintf("the embedded prices: %v", err)) // a test reads them
	}
	return catalogue
}

// Parse reads a catalogue: CSV (RFC 4180) with the header
//
//	kind,provider,region,name,cpu_milli,memory_bytes,gpu_class,gpus,gpu_memory_bytes,\
//	  price_usd,unit,dated,source,valid_until
//
// and lines that start with # for comments. The fields are those of Row; prices are decimals (quantity.ParseDollars),
// days are written 2026-01-19, sizes are whole numbers, gpu_memory_bytes is that of one GPU. Sizes of storage, the GPU
// columns and valid_until may be empty.
//
// A row is refused when a field is missing or malformed, when it is there twice, when it is not yet valid or not any
// more on the day of now (the zero now accepts all days), and when its name lacks one of the prices that its kind has.
// The error names the line and the column, says what to do, and wraps ErrCatalogue; what r returns is wrapped as it is.
// Parse reads no more than 16 MiB.
func Parse(r io.Reader, now time.Time) (Catalogue, error) {
	limited := &io.LimitedReader{R: r, N: mostBytes + 1}
	reader := csv.NewReader(limited)
	reader.Comment, reader.FieldsPerRecord = '#', len(columns)
	p := parser{csv: reader, now: now, lines: map[Row]int{}}
	rows, err := p.all()
	if limited.N <= 0 {
		return Catalogue{}, fmt.Errorf("read prices: %w: more than %d MiB; remove what is not needed", ErrCatalogue,
			mostBytes>>20)
	}
	if err != nil {
		return Catalogue{}, fmt.Errorf("read prices: %w", err)
	}
	return Catalogue{rows: rows}, nil
}

// parser reads the rows of one file.
type parser struct {
	csv    *csv.Reader
	now    time.Time
	fields []string
	lines  map[Row]int // where each name and unit was first read
	err    error       // the first problem of the row
}

func (p *parser) all() ([]Row, error) {
	if err := p.next(); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it is empty; write the header %s and at least one row", ErrCatalogue,
				strings.Join(columns, ","))
		}
		return nil, err
	}
	for i, name := range columns {
		if p.fields[i] != name {
			return nil, p.refuse(i, "the header has %q here; the columns are %s", p.fields[i], strings.Join(columns, ","))
		}
	}
	var rows []Row
	for {
		err := p.next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		row, err := p.row()
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%w: there is no row below the header; write at least one price", ErrCatalogue)
	}
	slices.SortFunc(rows, compareRows)
	return rows, p.complete(rows)
}

// next reads one record. A record that is no CSV is the catalogue's fault, a failing reader is not.
func (p *parser) next() error {
	var err error
	p.fields, err = p.csv.Read()
	if malformed, ok := errors.AsType[*csv.ParseError](err); ok {
		if errors.Is(err, csv.ErrFieldCount) {
			return fmt.Errorf("%w: line %d has %d columns, not %d; write one value or nothing for each of %s",
				ErrCatalogue, malformed.Line, len(p.fields), len(columns), strings.Join(columns, ","))
		}
		return fmt.Errorf("%w: line %d, column %d: %w; quote fields as RFC 4180 says", ErrCatalogue, malformed.Line,
			malformed.Column, malformed.Err)
	}
	return err
}

// refuse says what is wrong with a field of the record.
func (p *parser) refuse(column int, format string, args ...any) error {
	line, position := p.csv.FieldPos(column)
	return fmt.Errorf("%w: line %d, column %d (%s): %w", ErrCatalogue, line, position, columns[column],
		fmt.Errorf(format, args...))
}

// The indices of the columns.
const (
	columnKind = iota
	columnProvider
	columnRegion
	columnName
	columnCPU
	columnMemory
	columnGPUClass
	columnGPUs
	columnGPUMemory
	columnPrice
	columnUnit
	columnDated
	columnSource
	columnValidUntil
)

func (p *parser) row() (Row, error) {
	p.err = nil
	row := Row{
		Kind: Kind(p.fields[columnKind]), Provider: p.name(columnProvider), Region: p.name(columnRegion),
		Name: p.name(columnName),
		Unit: Unit(p.fields[columnUnit]), Source: p.fields[columnSource],
	}
	if !slices.Contains(kinds, row.Kind) {
		return Row{}, p.refuse(columnKind, "%.40q is no kind; write one of %q", row.Kind, kinds)
	}
	if !slices.Contains(row.Kind.units(), row.Unit) {
		return Row{}, p.refuse(columnUnit, "%.40q is no unit of a %s; write one of %q", row.Unit, row.Kind, row.Kind.units())
	}
	price, err := quantity.ParseDollars(p.fields[columnPrice])
	if err != nil {
		return Row{}, p.refuse(columnPrice, "%w", err)
	}
	row.Price = price
	if row.Source == "" || len(row.Source) > mostText || strings.TrimSpace(row.Source) != row.Source ||
		strings.ContainsAny(row.Source, "\r\n") {
		p.note(columnSource, "%.40q is no source; write one line that says where the price was found, of at most %d bytes",
			row.Source, mostText)
	}
	p.capacity(&row)
	p.days(&row)

	key := Row{Kind: row.Kind, Region: row.Region, Name: row.Name, Unit: row.Unit}
	if first := p.lines[key]; first != 0 {
		p.note(columnName, "%s of %s by the %s is on line %d already; keep one of the two", row.Name, row.Region, row.Unit,
			first)
	}
	p.lines[key], _ = p.csv.FieldPos(columnName)
	return row, p.err
}

// note keeps the first problem.
func (p *parser) note(column int, format string, args ...any) {
	if p.err == nil {
		p.err = p.refuse(column, format, args...)
	}
}

func (p *parser) name(column int) string {
	if !namePattern.MatchString(p.fields[column]) {
		p.note(column, "%.40q is no name; write up to 100 letters, digits, dots, dashes and underscores", p.fields[column])
	}
	return p.fields[column]
}

// number reads a whole number from least to most; an empty field is 0 where least is.
func (p *parser) number(column int, least, most int64) int64 {
	text := p.fields[column]
	if text == "" && least == 0 {
		return 0
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < least || number > most {
		p.note(column, "%.40q is no whole number from %d to %d; write one", text, least, most)
	}
	return number
}

func (p *parser) capacity(row *Row) {
	least, leastMemory := int64(1), int64(1)
	switch row.Kind {
	case Function:
		leastMemory = int64(leastFunctionMemory)
	case StorageRequest, StorageMonth:
		least, leastMemory = 0, 0
	case OnDemandHost, SpotHost, Container:
	}
	row.Capacity.CPU = quantity.Milli(p.number(columnCPU, least, int64(mostCPU)))
	row.Capacity.Memory = quantity.Bytes(p.number(columnMemory, leastMemory, mostMemory))
	if row.Kind == Function && row.Capacity.Memory%quantity.MiB != 0 {
		p.note(columnMemory, "%d is no multiple of 1,048,576; functions have whole MiB", row.Capacity.Memory)
	}
	gpus := p.number(columnGPUs, 0, mostGPUs)
	each := quantity.Bytes(p.number(columnGPUMemory, 0, mostMemory/mostGPUs))
	switch class := p.fields[columnGPUClass]; {
	case gpus > 0 && !row.Kind.IsHost():
		p.note(columnGPUs, "a %s has no GPU; leave the column empty", row.Kind)
	case gpus > 0:
		row.Capacity.DeviceClass = p.name(columnGPUClass)
		if each == 0 {
			p.note(columnGPUMemory, "it is missing; write the memory of one GPU in bytes")
		}
		row.Capacity.GPU, row.Capacity.GPUMemory = quantity.Milli(gpus)*quantity.Core, quantity.Bytes(gpus)*each
	case class != "":
		p.note(columnGPUs, "it is missing; write how many GPUs of class %.40q there are", class)
	case each > 0:
		p.note(columnGPUMemory, "there is no GPU; leave the column empty, or write gpus and gpu_class")
	}
}

const day = 24 * time.Hour

func (p *parser) days(row *Row) {
	row.Dated = p.date(columnDated)
	if !p.now.IsZero() && row.Dated.After(p.now) {
		p.note(columnDated, "%s is later than today, %s; write the day on which the source stated the price",
			p.fields[columnDated], p.now.Format(time.DateOnly))
	}
	if p.fields[columnValidUntil] == "" {
		return
	}
	row.ValidUntil = p.date(columnValidUntil)
	if row.ValidUntil.Before(row.Dated) {
		p.note(columnValidUntil, "%s is before the day of the price, %s; correct one of them", p.fields[columnValidUntil],
			p.fields[columnDated])
	}
	if !p.now.IsZero() && !p.now.Before(row.ValidUntil.Add(day)) {
		p.note(columnValidUntil, "the price held until %s and today is %s; look it up again, or remove the row",
			p.fields[columnValidUntil], p.now.Format(time.DateOnly))
	}
}

func (p *parser) date(column int) time.Time {
	date, err := time.Parse(time.DateOnly, p.fields[column])
	if err != nil || date.Year() < 2000 {
		p.note(column, "%.40q is no day; write it as 2026-01-19", p.fields[column])
	}
	return date
}

// complete refuses names that lack one of the prices of their kind, and rows of one name that contradict each other.
func (p *parser) complete(rows []Row) error {
	for named := range names(rows) {
		first := named[0]
		for _, row := range named {
			if row.Provider != first.Provider || row.Capacity != first.Capacity {
				return fmt.Errorf("%w: line %d: %s of %s has another provider or another size on line %d; write the same on both",
					ErrCatalogue, p.line(row), first.Name, first.Region, p.line(first))
			}
		}
		for _, unit := range first.Kind.units() {
			if !slices.ContainsFunc(named, func(row Row) bool { return row.Unit == unit }) {
				return fmt.Errorf("%w: line %d: %s of %s has no price by the %s; add that row",
					ErrCatalogue, p.line(first), first.Name, first.Region, unit)
			}
		}
	}
	return nil
}

// names yields the rows of each name of sorted rows.
func names(rows []Row) iter.Seq[[]Row] {
	return func(yield func([]Row) bool) {
		for start := 0; start < len(rows); {
			end := start + 1
			for end < len(rows) && compareNames(rows[end], rows[start]) == 0 {
				end++
			}
			if !yield(rows[start:end]) {
				return
			}
			start = end
		}
	}
}

func (p *parser) line(row Row) int {
	return p.lines[Row{Kind: row.Kind, Region: row.Region, Name: row.Name, Unit: row.Unit}]
}
