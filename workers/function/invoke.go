package function

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// request is one call of Invoke.
type request struct {
	id            string
	traceID       string
	clientContext string // JSON, or ""
	payload       []byte
}

// result is what a request that ran came to.
type result struct {
	answer
	tail []byte // the end of the log, with the report
}

// invoke serves Invoke: https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html.
func (h *Host) invoke(w http.ResponseWriter, r *http.Request, payload []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	kind := r.Header.Get("X-Amz-Invocation-Type")
	req, err := readRequest(r, payload, w.Header().Get("X-Amzn-Requestid"))
	if err != nil {
		return err
	}
	switch kind {
	case "", "RequestResponse":
	case "DryRun":
		w.WriteHeader(http.StatusNoContent)
		return nil
	case "Event":
		return errInvalid("asynchronous invocations do not run here: invoke with RequestResponse")
	default:
		return errInvalid("'invocationType' %q failed to satisfy constraint: [Event, RequestResponse, DryRun]", kind)
	}
	res, err := h.execute(f, req)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("X-Amz-Executed-Version", latest)
	header.Set("Content-Type", "application/json")
	if res.failed {
		header.Set("X-Amz-Function-Error", unhandled)
	}
	if r.Header.Get("X-Amz-Log-Type") == "Tail" {
		header.Set("X-Amz-Log-Result", base64.StdEncoding.EncodeToString(res.tail))
	}
	h.write(w, res.payload)
	return nil
}

// readRequest reads what Invoke sends.
func readRequest(r *http.Request, payload []byte, id string) (request, error) {
	switch {
	case len(payload) == 0:
		payload = []byte("{}")
	case !json.Valid(payload):
		return request{}, errContent("Could not parse request body into json")
	}
	clientContext, err := base64.StdEncoding.DecodeString(r.Header.Get("X-Amz-Client-Context"))
	if err != nil || len(clientContext) > 0 && !json.Valid(clientContext) {
		return request{}, errContent("Client context must be a valid Base64-encoded JSON object.")
	}
	var compact bytes.Buffer // a header holds no line ends
	if len(clientContext) > 0 {
		if err := json.Compact(&compact, clientContext); err != nil {
			return request{}, errContent("Client context must be a valid Base64-encoded JSON object.")
		}
	}
	return request{id: id, traceID: newTraceID(time.Now()), clientContext: compact.String(), payload: payload}, nil
}

// execute runs req on an environment of f. An error means that the function did not run.
func (h *Host) execute(f *function, req request) (result, error) {
	if err := h.claim(f); err != nil {
		return result{}, err
	}
	defer h.unclaim(f)
	defer h.meter.begin()()
	for {
		env, fresh, err := h.take(f)
		if err != nil {
			return result{}, err
		}
		rep := report{id: req.id, memoryMB: env.config.MemoryMB}
		var a answer
		end := finished
		if fresh {
			started := time.Now()
			a, end, err = h.initialize(env, req.id)
			if err != nil {
				return result{}, err
			}
			rep.initialized = time.Since(started)
		}
		if end == finished {
			started := time.Now()
			inv := &invocation{request: req, deadline: started.Add(env.config.timeout()), done: make(chan struct{})}
			a, end = env.invoke(inv, env.config.timeout())
			if end == undelivered && !fresh {
				continue // it died while it was idle: no fault of this invocation
			}
			rep.duration = min(time.Since(started), env.config.timeout())
		}
		if a.failed && h.isClosing() {
			return result{}, errShutdown()
		}
		return result{answer: a, tail: h.conclude(env, rep, a, end)}, nil
	}
}

// initialize starts a fresh environment and waits until it is ready, which the ending finished says. With another
// ending the environment is gone and the answer is that of the invocation.
func (h *Host) initialize(env *environment, id string) (answer, ending, error) {
	if h.opts.ColdStart > 0 {
		timer := time.NewTimer(h.opts.ColdStart)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-h.closing:
			h.gone(env)
			return answer{}, exited, errShutdown()
		}
	}
	if err := h.launch(env); errors.Is(err, errEntrypoint) {
		return failure(id, "Runtime.InvalidEntrypoint", err.Error()), exited, nil
	} else if err != nil {
		return answer{}, exited, err
	}
	a, end := env.awaitReady(id, h.opts.InitTimeout)
	env.look()
	if end != finished {
		env.kill()
		<-env.exited
	}
	return a, end, nil
}

// conclude gives env back if it can serve again, counts, and returns the end of the log of the invocation.
func (h *Host) conclude(env *environment, rep report, a answer, end ending) []byte {
	var outOfRoom bool
	rep.maxMemoryMB, outOfRoom = env.memory()
	switch {
	case end == timedOut:
		rep.status = "timeout"
	case end != finished && outOfRoom:
		rep.status, rep.errorType = "error", "Runtime.OutOfMemory"
	case end != finished:
		rep.status, rep.errorType = "error", a.errorType
	}
	printed := env.output.take()
	if end == finished {
		h.giveBack(env)
	} else {
		h.count(env.function, func(s *FunctionStats) {
			switch rep.status {
			case "timeout":
				s.Timeouts++
			default:
				if outOfRoom {
					s.OOM++
				}
			}
		})
		h.log.Warn("environment lost", "function", env.config.Name, "request_id", rep.id, "status", rep.status,
			"error_type", rep.errorType, "max_memory_mb", rep.maxMemoryMB)
	}
	said := rep.String()
	if h.log.Enabled(context.Background(), slog.LevelDebug) {
		h.log.Debug("invocation ended", "function", env.config.Name, "request_id", rep.id, "failed", a.failed,
			"memory_mb", rep.memoryMB, "billed_ms", rep.billed(), "report", said)
	}
	log := make([]byte, 0, len(printed)+len(said)+len(logFrame)+2*len(rep.id))
	log = append(append(append(append(log, "START RequestId: "...), rep.id...), " Version: "+latest+"\n"...), printed...)
	if len(printed) > 0 && printed[len(printed)-1] != '\n' {
		log = append(log, '\n')
	}
	log = append(append(append(append(append(log, "END RequestId: "...), rep.id...), '\n'), said...), '\n')
	return log[max(0, len(log)-maxTailBytes):]
}

// logFrame is what surrounds the log of an invocation, but for its IDs and its report.
const logFrame = "START RequestId:  Version: " + latest + "\n\nEND RequestId: \n\n"

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// newTraceID returns the trace header of an invocation that is not sampled.
func newTraceID(now time.Time) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("Root=1-%08x-%x;Sampled=0", now.Unix(), b)
}
