package torch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

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
		if ctx.Err() != nil {
			err = errors.Join(err, p.leave(context.WithoutCancel(ctx)))
		}
		return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
	}
	var told struct {
		Samples int               `json:"samples"`
		Loss    number            `json:"loss"`
		Metrics map[string]number `json:"metrics"`
	}
	err := p.stages[len(p.stages)-1].call(ctx, "evaluated", map[string]any{}, &told)
	if err != nil {
		return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
	}
	found := exec.Evaluation{Samples: told.Samples, Loss: float64(told.Loss), Metrics: map[string]float64{}}
	for name, value := range told.Metrics {
		found.Metrics[name] = float64(value)
	}
	for _, s := range p.stages {
		if err := s.call(ctx, "end_evaluation", numbers(found), nil); err != nil {
			return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
		}
	}
	return found, nil
}

// leave ends an evaluation half-way. What parts compute of it they compute to the end: one may read what another holds.
func (p *pipeline) leave(ctx context.Context) error {
	for _, s := range p.stages {
		if _, err := s.Usage(ctx); err != nil { // it answers after what it computes
			return err
		}
	}
	for _, s := range p.stages {
		if err := s.call(ctx, "end_evaluation", map[string]any{}, nil); err != nil {
			return err
		}
	}
	return nil
}

// numbers is what schedulers are told of an evaluation, as texts: JSON has no NaN.
func numbers(found exec.Evaluation) map[string]any {
	all := map[string]string{"validation_loss": strconv.FormatFloat(found.Loss, 'g', -1, 64)}
	for name, value := range found.Metrics {
		all[name] = strconv.FormatFloat(value, 'g', -1, 64)
	}
	return map[string]any{"numbers": all}
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
	w := way{pieces: make([]chan piece, last), room: make([]chan struct{}, last)}
	for i := range last {
		w.pieces[i], w.room[i] = make(chan piece, p.stages[i].inFlight), make(chan struct{}, p.stages[i].inFlight)
	}
	for _, s := range p.stages {
		group.Go(func() error { return w.follow(ctx, s) })
	}
	return group.Wait()
}

// way is how pieces get from part to part: pieces of part i to the next, and room for what it makes of them.
type way struct {
	pieces []chan piece
	room   []chan struct{}
}

// follow has a part evaluate every piece. It begins one when all have read its message of the one that lies in the same
// memory.
func (w way) follow(ctx context.Context, s *stage) error {
	last := s.number == len(w.pieces)
	if !last {
		defer close(w.pieces[s.number])
	}
	next := piece{} // for the first part
	for {
		if !last && send(ctx, w.room[s.number], struct{}{}) != nil {
			return context.Cause(ctx)
		}
		more, err := w.receive(ctx, s, &next)
		if err != nil || !more {
			return err
		}
		at := next
		if err := s.evaluate(ctx, &at); err != nil {
			return err
		}
		next = piece{number: at.number + 1, first: at.first + at.samples}
		if last {
			for _, r := range w.room {
				<-r
			}
		} else if err := send(ctx, w.pieces[s.number], at); err != nil {
			return err
		}
	}
}

// receive gets the next piece, which the first part reads; more is false after the last one.
func (w way) receive(ctx context.Context, s *stage, next *piece) (more bool, err error) {
	if s.number == 0 {
		return s.readPiece(ctx, next)
	}
	select {
	case *next, more = <-w.pieces[s.number-1]:
		return more, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// readPiece has the first part read a piece; more is false after the last one.
func (s *stage) readPiece(ctx context.Context, next *piece) (more bool, err error) {
	var read *struct {
		Samples int     `json:"samples"`
		Message message `json:"message"`
	}
	request := map[string]any{"piece": next.number, "window": s.inFlight}
	if err := s.call(ctx, "validation_piece", request, &read); err != nil || read == nil {
		return false, err
	}
	next.samples, next.batch = read.Samples, read.Message
	return true, nil
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

func send[T any](ctx context.Context, to chan<- T, value T) error {
	select {
	case to <- value:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
