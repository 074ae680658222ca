package web

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// Error is what the API answers when it does not do what was asked: {"error":{"message":...,"hint":...}}.
// Engines return it to choose the status; clients get it back.
type Error struct {
	// Status is the HTTP status, 400 to 599.
	Status int `json:"-"`
	// Message says what was wrong.
	Message string `json:"message"`
	// Hint says what to do; it may be empty.
	Hint string `json:"hint,omitempty"`
	// RetryAfter is when to ask again, in whole seconds; 0 says nothing about that.
	RetryAfter time.Duration `json:"-"`
	// NoRoute says, to clients, of status 404 that the API has nothing at this address, whatever was asked for: the engine
	// is of another version, or what answered is none.
	NoRoute bool `json:"-"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// OnItsWay reports whether what is not there yet will be: an event that starts it was just taken.
func (e *Error) OnItsWay() bool { return e.Status == http.StatusNotFound && e.RetryAfter > 0 }

// Advice returns the hint.
func (e *Error) Advice() string { return e.Hint }

// NotFound returns an Error with status 404: what was asked for is not there.
func NotFound(hint, format string, args ...any) *Error {
	return &Error{Status: http.StatusNotFound, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// noRoute begins the message of status 404 where the API has nothing at an address. Clients of other versions know it
// by that.
const noRoute = "the API has no "

// SaysNoRoute reports whether a message of status 404 is about the address, and not about what was asked for; an empty
// one is not from the API.
func SaysNoRoute(message string) bool {
	return message == "" || strings.HasPrefix(message, noRoute) || strings.HasPrefix(message, apiPlace)
}

// NoRun returns the Error with status 404 of a run that is not there.
func NoRun(run string) *Error {
	return NotFound("`spillway runs` lists them", "there is no run %.100q", run)
}

// Invalid returns an Error with status 400: the request itself is wrong and will be refused again.
func Invalid(hint, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Conflict returns an Error with status 409: the request is right but not now.
func Conflict(hint, format string, args ...any) *Error {
	return &Error{Status: http.StatusConflict, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Gone returns an Error with status 410: what was there is there no more.
func Gone(hint, format string, args ...any) *Error {
	return &Error{Status: http.StatusGone, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Unprocessable returns an Error with status 422: the request is well formed, and what it asks for cannot be.
func Unprocessable(hint, format string, args ...any) *Error {
	return &Error{Status: http.StatusUnprocessableEntity, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Starting returns an Error with status 503: the engine is not ready yet and soon will be. The text says how far it has
// come, or what else it waits for.
func Starting(format string, args ...any) *Error {
	return &Error{
		Status: http.StatusServiceUnavailable, Message: fmt.Sprintf(format, args...),
		Hint:       "ask again in a moment; GET /healthz says when the engine is ready",
		RetryAfter: time.Second,
	}
}

// statusOf returns the status with which err is answered, and what is said.
func statusOf(err error) *Error {
	if answer, ok := errors.AsType[*Error](err); ok {
		status := answer.Status
		if status < http.StatusBadRequest || status > 599 {
			status = http.StatusInternalServerError
		}
		// The wrapping text of err says more than the answer alone.
		return &Error{Status: status, Message: err.Error(), Hint: answer.Hint, RetryAfter: answer.RetryAfter}
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return statusOf(access.TooLarge(tooLarge.Limit))
	}
	if refusal, ok := errors.AsType[*access.Refusal](err); ok {
		return &Error{Status: refusal.Status, Message: refusal.Message, Hint: refusal.Hint}
	}
	return &Error{
		Status: http.StatusInternalServerError, Message: err.Error(),
		Hint: "look into the engine's log in the state directory",
	}
}
