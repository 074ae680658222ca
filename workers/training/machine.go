package training

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"time"
)

const (
	copiedBytes = 8 << 20 // beyond most caches, and little beside a model
	copies      = 5
	roundTrips  = 200
)

// measureMachine measures how fast memory is copied and, where parts have processes of their own, how long a word to
// another thread takes and the answer.
func measureMachine(processes bool) machine {
	from, to := make([]byte, copiedBytes), make([]byte, copiedBytes)
	for i := 0; i < len(from); i += 4096 { // pages that were never written are all one
		from[i], to[i] = 1, 1
	}
	var rates []float64
	for range copies {
		started := time.Now()
		copy(to, from)
		if took := time.Since(started).Seconds(); took > 0 {
			rates = append(rates, copiedBytes/took)
		}
	}
	m := machine{copyRate: median(rates, 0)}
	if processes {
		m.call = roundTrip()
	}
	return m
}

// writeRate is how fast files in a directory get to the disk, in bytes a second, by the slowest of two; 0 where that
// cannot be tried.
func writeRate(directory string) float64 {
	if directory == "" {
		return 0
	}
	file, err := os.CreateTemp(directory, ".rate.unfinished-")
	if err != nil {
		return 0
	}
	defer func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }()
	text, least := make([]byte, copiedBytes), 0.0
	for i := range text { // a file system may keep no zeros
		text[i] = byte(i * 2654435761 >> 8)
	}
	for n := range 2 {
		started := time.Now()
		_, err := file.WriteAt(text, int64(n)*copiedBytes)
		if err = errors.Join(err, file.Sync()); err != nil {
			return 0
		}
		if rate := copiedBytes / max(time.Since(started).Seconds(), 1e-6); n == 0 || rate < least {
			least = rate
		}
	}
	return least
}

// roundTrip is the median time of a byte through a pipe to another thread, and back, in seconds; 0 where there are no
// pipes.
func roundTrip() float64 {
	there, toThere, err := os.Pipe()
	if err != nil {
		return 0
	}
	here, toHere, err := os.Pipe()
	if err != nil {
		_, _ = there.Close(), toThere.Close()
		return 0
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		one := make([]byte, 1)
		for {
			if n, err := there.Read(one); n == 0 || err != nil {
				return
			}
			if _, err := toHere.Write(one); err != nil {
				return
			}
		}
	}()
	var times []time.Duration
	one := make([]byte, 1)
	for range roundTrips {
		started := time.Now()
		if _, err := toThere.Write(one); err != nil {
			break
		}
		if _, err := here.Read(one); err != nil {
			break
		}
		times = append(times, time.Since(started))
	}
	_ = toThere.Close() // the other side ends with it
	<-done
	_, _, _ = there.Close(), toHere.Close(), here.Close()
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2].Seconds()
}
