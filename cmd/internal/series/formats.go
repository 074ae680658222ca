package series

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrFormat is wrapped by every error about what a file says, as opposed to a file that cannot be read.
var ErrFormat = errors.New("not in the expected format")

// Containers reads "value,timestamp_anon,container_ip" rows, the columns in any order below a header: seconds since
// 1970 and a use of 0 or more. Rows of all containers may be mixed and out of order; rows that name no container ("",
// "NULL", "None") are left out, and of several rows of one container at one time the largest counts.
func Containers(source io.Reader) ([]Series, error) {
	rows, columns, err := table(source, "value", "timestamp_anon", "container_ip")
	if err != nil {
		return nil, err
	}
	value, at, name := columns[0], columns[1], columns[2]
	points := map[string][]Point{}
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		switch row.fields[name] {
		case "", "NULL", "None":
			continue
		}
		seconds, err := row.number(at)
		if err != nil {
			return nil, err
		}
		if seconds > maxSeconds {
			return nil, row.fault("%q is not a time in seconds since 1970", row.fields[at])
		}
		use, err := row.noisy(value)
		if err != nil {
			return nil, err
		}
		key := row.fields[name]
		if _, known := points[key]; !known {
			key = strings.Clone(key)
		}
		whole, part := math.Modf(seconds)
		points[key] = append(points[key], Point{At: time.Unix(int64(whole), int64(part*1e9)).UTC(), Value: use})
	}
	return grouped(points), nil
}

// maxSeconds ends the year 9999, which is what time.Time can write as text.
const maxSeconds = 253402300799

// Machines reads "name,use,use,..." rows without a header, one row for each virtual machine, the uses step apart.
// The rows start at the same, arbitrary time. All rows of a file have the same length.
func Machines(step time.Duration) Format {
	return func(source io.Reader) ([]Series, error) {
		var all []Series
		for row, err := range records(source) {
			if err != nil {
				return nil, err
			}
			if len(row.fields) < 2 {
				return nil, row.fault("a name without a use")
			}
			machine := Series{Name: strings.Clone(row.fields[0]), Points: make([]Point, 0, len(row.fields)-1)}
			for i := 1; i < len(row.fields); i++ {
				use, err := row.number(i)
				if err != nil {
					return nil, err
				}
				machine.Points = append(machine.Points, Point{At: machinesStart.Add(time.Duration(i-1) * step), Value: use})
			}
			all = append(all, machine)
		}
		return all, nil
	}
}

var machinesStart = time.Date(2011, time.March, 3, 0, 0, 0, 0, time.UTC)

// Pools reads "timestamp,cpu,mem" rows below a header, the columns in any order: a resource pool, at times such as
// "2024-07-31 23:09" (UTC). It returns two series, "cpu" and "mem"; of several rows at one time the largest use counts.
func Pools(source io.Reader) ([]Series, error) {
	rows, columns, err := table(source, "timestamp", "cpu", "mem")
	if err != nil {
		return nil, err
	}
	points := map[string][]Point{}
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		at, err := time.Parse("2006-01-02 15:04", row.fields[columns[0]])
		if err != nil {
			return nil, row.fault("%q is not a time such as 2024-07-31 23:09", row.fields[columns[0]])
		}
		for i, resource := range []string{"cpu", "mem"} {
			use, err := row.number(columns[i+1])
			if err != nil {
				return nil, err
			}
			points[resource] = append(points[resource], Point{At: at, Value: use})
		}
	}
	return grouped(points), nil
}

// grouped puts each group's points in the order of time, and the groups in that of their names.
func grouped(points map[string][]Point) []Series {
	all := make([]Series, 0, len(points))
	for name, of := range points {
		slices.SortStableFunc(of, func(a, b Point) int { return a.At.Compare(b.At) })
		kept := of[:0]
		for _, point := range of {
			if last := len(kept) - 1; last >= 0 && kept[last].At.Equal(point.At) {
				kept[last].Value = max(kept[last].Value, point.Value)
				continue
			}
			kept = append(kept, point)
		}
		all = append(all, Series{Name: name, Points: kept})
	}
	slices.SortFunc(all, func(a, b Series) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// row is one line's fields; they live until the next row is read.
type row struct {
	fields []string
	line   int
}

func (r row) fault(format string, a ...any) error {
	return fmt.Errorf("line %d: %w: %s", r.line, ErrFormat, fmt.Sprintf(format, a...))
}

// number reads a use: finite and not negative.
func (r row) number(column int) (float64, error) {
	value, err := strconv.ParseFloat(r.fields[column], 64)
	switch {
	case err != nil || math.IsNaN(value) || math.IsInf(value, 0):
		return 0, r.fault("%q is not a finite number", r.fields[column])
	case value < 0:
		return 0, r.fault("%q is negative", r.fields[column])
	default:
		return math.Abs(value), nil // -0 is 0
	}
}

// noisy reads a use to which its publisher added noise, so that one near zero may have become negative: down to -noise
// it is zero.
func (r row) noisy(column int) (float64, error) {
	if value, err := strconv.ParseFloat(r.fields[column], 64); err == nil && value < 0 && value >= -noise {
		return 0, nil
	}
	return r.number(column)
}

// noise is a thousandth of the whole: larger than the one negative use of 130,000 that is known (-0.00001), and no use
// that matters.
const noise = 0.001

type rowsOrError func(yield func(row, error) bool)

// records yields the lines of comma-separated text; after an error it ends.
func records(source io.Reader) rowsOrError {
	reader := csv.NewReader(source)
	reader.ReuseRecord = true
	return read(reader)
}

func read(reader *csv.Reader) rowsOrError {
	return func(yield func(row, error) bool) {
		line := 0
		for {
			fields, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if _, isText := errors.AsType[*csv.ParseError](err); isText {
					err = fmt.Errorf("%w: %w", ErrFormat, err)
				} else {
					err = fmt.Errorf("after line %d: %w", line, err)
				}
				yield(row{}, err)
				return
			}
			line, _ = reader.FieldPos(0)
			if !yield(row{fields: fields, line: line}, nil) {
				return
			}
		}
	}
}

// table reads the header, which must hold exactly the wanted columns, and returns the rows below it and where each
// wanted column is.
func table(source io.Reader, wanted ...string) (rowsOrError, []int, error) {
	reader, header, columns, err := headed(source, wanted...)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range header {
		if !slices.Contains(wanted, name) {
			return nil, nil, fmt.Errorf("line 1: %w: unknown column %q; want %s", ErrFormat, name, strings.Join(wanted, ", "))
		}
	}
	if len(header) != len(wanted) {
		return nil, nil, fmt.Errorf("line 1: %w: a column is named twice in %s", ErrFormat, strings.Join(header, ", "))
	}
	return read(reader), columns, nil
}

// headed reads the header, in which the wanted columns must be, and returns it and where each wanted column is.
func headed(source io.Reader, wanted ...string) (reader *csv.Reader, header []string, columns []int, err error) {
	reader = csv.NewReader(source)
	reader.ReuseRecord = true
	header, err = reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil, nil, fmt.Errorf("line 1: %w: the file is empty; want the columns %s", ErrFormat,
			strings.Join(wanted, ", "))
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read the header: %w", err)
	}
	columns = make([]int, len(wanted))
	for i, name := range wanted {
		columns[i] = slices.Index(header, name)
		if columns[i] < 0 {
			return nil, nil, nil, fmt.Errorf("line 1: %w: no column %q among %s", ErrFormat, name,
				strings.Join(header, ", "))
		}
	}
	return reader, header, columns, nil
}
