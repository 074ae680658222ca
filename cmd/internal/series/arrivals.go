package series

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// PerSecond reads one whole number a line: how many arrivals each second brought.
func PerSecond(source io.Reader) ([]float64, error) {
	var counts []float64
	for line, err := range lines(source) {
		if err != nil {
			return nil, err
		}
		count, err := strconv.ParseUint(line.fields[0], 10, 32)
		if err != nil || len(line.fields) > 1 {
			return nil, line.fault("%q is no number of arrivals from 0 to 2^32-1", strings.Join(line.fields, " "))
		}
		counts = append(counts, float64(count))
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("line 1: %w: no second is told", ErrFormat)
	}
	return counts, nil
}

// Requests reads "TIMESTAMP,ContextTokens,GeneratedTokens" rows, the columns in any order below a header: when each
// request came, at times such as "2023-11-16 18:15:46.6805900" (UTC), in their order.
func Requests(source io.Reader) ([]time.Time, error) {
	rows, columns, err := table(source, "TIMESTAMP", "ContextTokens", "GeneratedTokens")
	if err != nil {
		return nil, err
	}
	var requests []time.Time
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		at, err := time.Parse("2006-01-02 15:04:05", row.fields[columns[0]])
		if err != nil {
			return nil, row.fault("%q is not a time such as 2023-11-16 18:15:46.68", row.fields[columns[0]])
		}
		if n := len(requests); n > 0 && at.Before(requests[n-1]) {
			return nil, row.fault("the request came before that of the row above; sort the rows by TIMESTAMP")
		}
		requests = append(requests, at)
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("line 2: %w: no request below the header", ErrFormat)
	}
	return requests, nil
}

// Bin is the virtual machines that arrived in one bucket of time.
type Bin struct {
	// Start is counted from the start of the trace.
	Start time.Duration
	// Machines is how many arrived, Batches how many tenants asked for them.
	Machines, Batches int
}

// Bins reads "seconds flavor,flavor,|,flavor,|," lines: the machines that arrived in the bucket that begins then, each
// batch of one tenant closed by a bar.
func Bins(source io.Reader) ([]Bin, error) {
	var bins []Bin
	for line, err := range lines(source) {
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseUint(line.fields[0], 10, 32)
		if err != nil || len(line.fields) > 2 {
			return nil, line.fault("%q is no whole number of seconds and one list of machines", strings.Join(line.fields, " "))
		}
		bin := Bin{Start: time.Duration(seconds) * time.Second} //nolint:gosec // of 32 bits
		if n := len(bins); n > 0 && bin.Start <= bins[n-1].Start {
			return nil, line.fault("the bucket at %d s is not after the one above", seconds)
		}
		if len(line.fields) == 2 {
			for flavor := range strings.SplitSeq(strings.TrimSuffix(line.fields[1], ","), ",") {
				switch flavor {
				case "":
					return nil, line.fault("a machine without a flavor")
				case "|":
					bin.Batches++
				default:
					bin.Machines++
				}
			}
		}
		bins = append(bins, bin)
	}
	if len(bins) == 0 {
		return nil, fmt.Errorf("line 1: %w: no bucket is told", ErrFormat)
	}
	return bins, nil
}

// lines yields the words of each line that has any; after an error it ends.
func lines(source io.Reader) rowsOrError {
	return func(yield func(row, error) bool) {
		scanner := bufio.NewScanner(source)
		scanner.Buffer(nil, math.MaxInt32)
		number := 0
		for scanner.Scan() {
			number++
			if words := strings.Fields(scanner.Text()); len(words) > 0 && !yield(row{fields: words, line: number}, nil) {
				return
			}
		}
		if err := scanner.Err(); err != nil {
			yield(row{}, fmt.Errorf("after line %d: %w", number, err))
		}
	}
}
