package series

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Task is one recorded task of a workflow, which ran once and with memory enough.
type Task struct {
	// Process names the step of the workflow whose tasks are alike.
	Process string
	// Start and Complete are counted from the start of the workflow, Run is how long the task itself took; more than 0.
	Start, Complete, Run time.Duration
	// CPUs is how many cores the workflow asked for, more than 0.
	CPUs float64
	// Requested is the memory that the workflow asked for, in bytes, Peak the most that was resident; both more than 0.
	Requested, Peak int64
	// Input is the bytes of the files that the task was given.
	Input int64
}

// Tasks reads "process,start_ms,complete_ms,run_ms,cpus,requested_memory_bytes,input_bytes,peak_rss_bytes" rows, the
// columns in any order below a header: the tasks of one workflow in the order of their starts.
func Tasks(source io.Reader) ([]Task, error) {
	rows, columns, err := table(source, "process", "start_ms", "complete_ms", "run_ms", "cpus",
		"requested_memory_bytes", "input_bytes", "peak_rss_bytes")
	if err != nil {
		return nil, err
	}
	var all []Task
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		task, err := row.task(columns)
		if err != nil {
			return nil, err
		}
		if n := len(all); n > 0 && task.Start < all[n-1].Start {
			return nil, row.fault("the task starts at %d ms, before that of the row above, at %d ms; sort the rows by "+
				"start_ms", task.Start.Milliseconds(), all[n-1].Start.Milliseconds())
		}
		all = append(all, task)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("line 2: %w: no task below the header", ErrFormat)
	}
	return all, nil
}

const (
	maxMilliseconds = int64(100 * 365 * 24 * time.Hour / time.Millisecond)
	maxBytes        = int64(1) << 50
)

// task reads one; columns say where the fields of Tasks are.
func (r row) task(columns []int) (Task, error) {
	if r.fields[columns[0]] == "" {
		return Task{}, r.fault("a task without a process")
	}
	var start, complete, run int64
	task := Task{Process: strings.Clone(r.fields[columns[0]])}
	for _, field := range []struct {
		into        *int64
		column      int
		least, most int64
	}{
		{&start, columns[1], 0, maxMilliseconds},
		{&complete, columns[2], 0, maxMilliseconds},
		{&run, columns[3], 1, maxMilliseconds},
		{&task.Requested, columns[5], 1, maxBytes},
		{&task.Input, columns[6], 0, maxBytes},
		{&task.Peak, columns[7], 1, maxBytes},
	} {
		value, err := strconv.ParseInt(r.fields[field.column], 10, 64)
		if err != nil || value < field.least || value > field.most {
			return Task{}, r.fault("%q is no whole number from %d to %d", r.fields[field.column], field.least, field.most)
		}
		*field.into = value
	}
	cpus, err := strconv.ParseFloat(r.fields[columns[4]], 64)
	if err != nil || !(cpus > 0) || math.IsInf(cpus, 0) {
		return Task{}, r.fault("%q is no finite number of cores above 0", r.fields[columns[4]])
	}
	if complete <= start {
		return Task{}, r.fault("the task is complete at %d ms, not after its start at %d ms", complete, start)
	}
	task.CPUs = cpus
	task.Start = time.Duration(start) * time.Millisecond
	task.Complete = time.Duration(complete) * time.Millisecond
	task.Run = time.Duration(run) * time.Millisecond
	return task, nil
}
