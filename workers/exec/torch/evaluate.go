package torch

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-ml/spillway/workers/exec"
)

var _ exec.Evaluator = (*pipeline)(nil)

// Evaluate sends the validation data through the parts in evaluation mode, in pieces of at most a micro-batch. While a
// part has one piece, the part before it has the next, as far as there is room for messages.
func (p *pipeline) Evaluate(ctx context.Context) (exec.Evaluation, error) {
	if !p.data.Validates {
		return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", exec.ErrNoValidation)
	}
	if err := p.evaluateAll(ctx); err != nil {
		return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
	}
	var told struct {
		Samples int               `json:"samples"`
		Loss    number            `json:"loss"`
		Metrics map[string]number `json:"metrics"`
	}
	for i, s := range p.stages {
		var result any
		if i == len(p.stages)-1 {
			result = &told
		}
		if err := s.call(ctx, "evaluated", map[string]any{}, result); err != nil {
			return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
		}
	}
	found := exec.Evaluation{Samples: told.Samples, Loss: float64(told.Loss), Metrics: map[string]float64{}}
	for name, value := range told.Metrics {
		found.Metrics[name] = float64(value)
	}
	return found, nil
}

// piece is some of the validation data on its way through the parts.
type piece struct {
	number, first, samples int
	batch                  exec.Message
	from                   []exec.Message // what earlier parts made of it
}

// evaluateAll returns when the last part has had every piece.
func (p *pipeline) evaluateAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	last := len(p.stages) - 1
	ways, room := make([]chan piece, last), make([]chan struct{}, last) // to the next part, and for messages to it
	for i := range last {
		ways[i], room[i] = make(chan piece, p.stages[i].inFlight), make(chan struct{}, p.stages[i].inFlight)
	}
	for i, s := range p.stages {
		group.Go(func() error {
			if i < last {
				defer close(ways[i])
			}
			number, samples := 0, 0 // of pieces before
			for {
				// A part begins a piece when all have read its message of the one that lies in the same memory.
				if i < last && send(ctx, room[i], struct{}{}) != nil {
					return context.Cause(ctx)
				}
				var at piece
				var more bool
				var err error
				if i == 0 {
					at, more, err = s.readPiece(ctx, number, samples)
				} else {
					at, more, err = receive(ctx, ways[i-1])
				}
				if err != nil || !more {
					return err
				}
				if err := s.evaluate(ctx, &at); err != nil {
					return err
				}
				number, samples = number+1, samples+at.samples
				if i < last {
					if err := send(ctx, ways[i], at); err != nil {
						return err
					}
					continue
				}
				for _, r := range room {
					<-r
				}
			}
		})
	}
	return group.Wait()
}

// readPiece has the first part read a piece; more is false after the last one.
func (s *stage) readPiece(ctx context.Context, number, first int) (at piece, more bool, err error) {
	var read *struct {
		Samples int     `json:"samples"`
		Message message `json:"message"`
	}
	request := map[string]any{"piece": number, "window": s.inFlight}
	if err := s.call(ctx, "validation_piece", request, &read); err != nil || read == nil {
		return piece{}, false, err
	}
	return piece{number: number, first: first, samples: read.Samples, batch: read.Message}, true, nil
}

// evaluate computes a piece and adds what the part made of it.
func (s *stage) evaluate(ctx context.Context, at *piece) error {
	request := map[string]any{"piece": at.number, "first": at.first, "samples": at.samples}
	if s.evaluationReadsBatch {
		request["batch"] = at.batch
	}
	read, err := messages(s.evaluationReads, at.from)
	if err != nil {
		return fmt.Errorf("part %d on %s: evaluate: %w", s.number, s.name, err)
	}
	if len(read) > 0 {
		request["from"] = read
	}
	var made message
	if err := s.call(ctx, "evaluate", request, &made); err != nil {
		return err
	}
	at.from = append(slices.Clone(at.from), made)
	return nil
}

func receive[T any](ctx context.Context, from <-chan T) (value T, more bool, err error) {
	select {
	case value, more = <-from:
		return value, more, nil
	case <-ctx.Done():
		return value, false, context.Cause(ctx)
	}
}

func send[T any](ctx context.Context, to chan<- T, value T) error {
	select {
	case to <- value:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
