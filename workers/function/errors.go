package function

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spillway-ml/spillway/activities/access"
)

// apiError is a refusal in the form of the Lambda API:
// https://docs.aws.amazon.com/lambda/latest/api/CommonErrors.html.
type apiError struct {
	status  int
	code    string // the exception's name
	message string
	reason  string // of a refusal for lack of concurrency
}

// Error implements error.
func (e *apiError) Error() string { return e.code + ": " + e.message }

func errInvalid(format string, args ...any) error {
	return &apiError{
		status: http.StatusBadRequest, code: "InvalidParameterValueException",
		message: fmt.Sprintf(format, args...),
	}
}

func errContent(message string) error {
	return &apiError{status: http.StatusBadRequest, code: "InvalidRequestContentException", message: message}
}

func errNotFound(name string) error {
	return &apiError{
		status: http.StatusNotFound, code: "ResourceNotFoundException",
		message: "Function not found: " + name,
	}
}

func errExists(name string) error {
	return &apiError{
		status: http.StatusConflict, code: "ResourceConflictException",
		message: "Function already exist: " + name,
	}
}

func errTooLarge(limit int) error {
	return &apiError{
		status: http.StatusRequestEntityTooLarge, code: "RequestTooLargeException",
		message: fmt.Sprintf("Request must be smaller than %d bytes for the InvokeFunction operation", limit),
	}
}

func errUploadTooLarge() error {
	return &apiError{
		status: http.StatusRequestEntityTooLarge, code: "RequestEntityTooLargeException",
		message: fmt.Sprintf("Request must be smaller than %d bytes", maxUploadBytes),
	}
}

func errThrottled(reason string) error {
	return &apiError{
		status: http.StatusTooManyRequests, code: "TooManyRequestsException", message: "Rate Exceeded.",
		reason: reason,
	}
}

func errShutdown() error {
	return &apiError{
		status: http.StatusServiceUnavailable, code: "ServiceException",
		message: "The function host is shutting down.",
	}
}

// errRefused is a refusal of the guard.
func errRefused(refusal *access.Refusal) error {
	code := "AccessDeniedException"
	if refusal.Status == http.StatusRequestTimeout {
		code = "RequestTimeoutException"
	}
	message := refusal.Message
	if refusal.Hint != "" {
		message += "; " + refusal.Hint
	}
	return &apiError{status: refusal.Status, code: code, message: message}
}

// writeError answers with err. An error that is not the caller's is logged and not shown in detail.
func (h *Host) writeError(w http.ResponseWriter, r *http.Request, err error) {
	kind := "User"
	if refusal, guarded := errors.AsType[*access.Refusal](err); guarded {
		err = errRefused(refusal)
	}
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		kind = "Service"
		e = &apiError{
			status: http.StatusInternalServerError, code: "ServiceException",
			message: "The function host failed; its log tells more.",
		}
		h.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	w.Header().Set("X-Amzn-Errortype", e.code)
	if e.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	h.writeJSON(w, e.status, struct {
		Type    string
		Message string `json:"message"`
		Reason  string `json:",omitempty"`
	}{kind, e.message, e.reason})
}

// writeJSON answers with v.
func (h *Host) writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", v, err)) // our own shapes always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	h.write(w, b)
}

// write sends the rest of an answer. A caller who has gone away needs none.
func (h *Host) write(w http.ResponseWriter, b []byte) {
	if _, err := w.Write(b); err != nil {
		h.log.Debug("answer not delivered", "error", err)
	}
}
