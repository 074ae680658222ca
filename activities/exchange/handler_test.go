package exchange

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
)

// slow is a board in memory whose posts wait.
type slow struct {
	Memory

	came, goes chan struct{}
}

func (s *slow) Post(ctx context.Context, group, name string, data []byte) (bool, error) {
	s.came <- struct{}{}
	<-s.goes
	return s.Memory.Post(ctx, group, name, data)
}

func TestAttackAHandlerHoldsNoMoreThanItsRoom(t *testing.T) {
	t.Parallel()
	board := &slow{came: make(chan struct{}), goes: make(chan struct{})}
	served := handler(board, 100)
	ask := func(ctx context.Context, method, path string, body []byte) int {
		answer := httptest.NewRecorder()
		served.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body)))
		return answer.Code
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	vector := Vector{Weight: 1, Values: make([]float32, 12)}.encode()
	first := make(chan int)
	go func() { first <- ask(t.Context(), http.MethodPut, "/group/a", vector) }()
	<-board.came
	if got := ask(over, http.MethodPut, "/group/b", vector); got != http.StatusServiceUnavailable {
		t.Errorf("a second message beside the first: %d, want 503", got)
	}
	close(board.goes)
	if got := <-first; got != http.StatusCreated {
		t.Errorf("the first message: %d", got)
	}
	served = handler(&board.Memory, 1)
	if got := ask(t.Context(), http.MethodPost, "/group/mean", []byte(`{"names":["a"]}`)); got != http.StatusOK {
		t.Errorf("a mean that takes more than all room: %d, want that it takes all", got)
	}
	if got := ask(t.Context(), http.MethodGet, "/group/a", nil); got != http.StatusOK {
		t.Errorf("a look after it: %d", got)
	}
	unknown := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/group/c", struct{ *strings.Reader }{
		strings.NewReader("x"),
	})
	large := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/group/c", http.NoBody)
	large.ContentLength = mostMessage + 1
	for _, request := range []*http.Request{unknown, large} {
		answer := httptest.NewRecorder()
		if served.ServeHTTP(answer, request); answer.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("a message of %d bytes: %d", request.ContentLength, answer.Code)
		}
	}
}

// lengthy is a board that says how long its message is, and then waits.
type lengthy struct {
	activities.Board

	came, goes chan struct{}
}

func (l lengthy) Look(ctx context.Context, _, _ string) ([]byte, error) {
	if err := activities.Found(ctx, 60); err != nil {
		return nil, err
	}
	l.came <- struct{}{}
	<-l.goes
	return nil, nil
}

func TestAttackLooksHoldNoMoreThanTheRoom(t *testing.T) {
	t.Parallel()
	board := lengthy{came: make(chan struct{}), goes: make(chan struct{})}
	served := handler(board, 100)
	look := func(ctx context.Context) int {
		answer := httptest.NewRecorder()
		served.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/group/a", http.NoBody))
		return answer.Code
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	first := make(chan int)
	go func() { first <- look(t.Context()) }()
	<-board.came
	if got := look(over); got != http.StatusServiceUnavailable {
		t.Errorf("a second look beside the first: %d, want 503", got)
	}
	close(board.goes)
	if got := <-first; got != http.StatusOK {
		t.Errorf("the first look: %d", got)
	}
}
