package function

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// routes returns the operations of the Lambda API that this host has:
// https://docs.aws.amazon.com/lambda/latest/api/API_Operations.html.
func (h *Host) routes() *http.ServeMux {
	mux := http.NewServeMux()
	// Each operation sees only requests that are the owner's, body and all; the two that take code see to that themselves.
	receive := func(pattern string, serve func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := serve(w, r); err != nil {
				h.writeError(w, r, err)
			}
		})
	}
	handle := func(pattern string, serve func(w http.ResponseWriter, r *http.Request, body []byte) error) {
		receive(pattern, func(w http.ResponseWriter, r *http.Request) error {
			body, err := h.body(r)
			if err != nil {
				return err
			}
			return serve(w, r, body)
		})
	}
	receive("POST /2015-03-31/functions", h.createFunction)
	handle("GET /2015-03-31/functions", h.listFunctions)
	handle("GET /2015-03-31/functions/{name}", h.getFunction)
	handle("GET /2015-03-31/functions/{name}/configuration", h.getConfiguration)
	handle("PUT /2015-03-31/functions/{name}/configuration", h.updateConfiguration)
	receive("PUT /2015-03-31/functions/{name}/code", h.updateCode)
	handle("DELETE /2015-03-31/functions/{name}", h.deleteFunction)
	handle("PUT /2017-10-31/functions/{name}/concurrency", h.putConcurrency)
	handle("DELETE /2017-10-31/functions/{name}/concurrency", h.deleteConcurrency)
	handle("GET /2019-09-30/functions/{name}/concurrency", h.getConcurrency)
	handle("POST /2015-03-31/functions/{name}/invocations", h.invoke)
	handle("/", func(http.ResponseWriter, *http.Request, []byte) error {
		return &apiError{
			status: http.StatusNotFound, code: "UnknownOperationException",
			message: "This function host does not have the operation.",
		}
	})
	return mux
}

// lookup returns the function that a request names. The only version is $LATEST.
func (h *Host) lookup(r *http.Request) (*function, error) {
	name, qualifier := splitName(r.PathValue("name"))
	if q := r.URL.Query().Get("Qualifier"); q != "" {
		qualifier = q
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.functions[name]
	if !ok || qualifier != "" && qualifier != latest {
		return nil, errNotFound(config{Name: strings.TrimSuffix(name+":"+qualifier, ":")}.arn())
	}
	return f, nil
}

// settings returns the present config of f.
func (h *Host) settings(f *function) config {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f.config
}

// deployment is an upload unzipped in a temporary directory.
type deployment struct {
	upload
	dir string
}

// receive reads a request that brings code: its zip is unzipped, and the rest decoded into fields. The caller
// calls remove in any case.
func (h *Host) receive(r *http.Request, fields any, check func() error) (d deployment, remove func(), err error) {
	up, raw, err := h.upload(r)
	remove = func() {
		if err := errors.Join(removeIfThere(up.path), os.RemoveAll(d.dir)); err != nil {
			h.log.WarnContext(r.Context(), "upload not removed", "error", err)
		}
	}
	if err != nil {
		return d, remove, err
	}
	if err := json.Unmarshal(raw, fields); err != nil {
		return d, remove, errContent("Could not parse request body into json: " + err.Error())
	}
	if err := check(); err != nil {
		return d, remove, err
	}
	if up.bytes == 0 {
		return d, remove, errInvalid("no code: put a zip with a bootstrap into ZipFile")
	}
	d.upload = up
	if d.dir, err = h.store.tempDir("code-*"); err != nil {
		return d, remove, err
	}
	if err := unzip(up.path, d.dir); err != nil {
		return d, remove, errInvalid("Could not unzip uploaded file: %v", err)
	}
	return d, remove, os.Remove(up.path)
}

// upload receives the zip of a request that is the owner's. The path of what it returns, if any, is the caller's to
// remove, after an error too.
func (h *Host) upload(r *http.Request) (up upload, fields []byte, err error) {
	a, err := h.arrive(r)
	if err != nil {
		return up, nil, err
	}
	defer a.leave()
	body := &io.LimitedReader{R: a, N: maxUploadBytes + 1}
	up, fields, err = h.store.receiveUpload(body)
	if refusal := a.prove(); refusal != nil { // reads on to the end, so that the client finishes and reads the refusal
		return up, nil, refusal
	}
	switch {
	case body.N <= 0:
		return up, nil, errUploadTooLarge()
	case errors.Is(err, errSyntax), errors.Is(err, errFieldsTooLong):
		return up, nil, errContent(err.Error())
	}
	return up, fields, err
}

func (h *Host) createFunction(w http.ResponseWriter, r *http.Request) error {
	var in createInput
	var c config
	d, remove, err := h.receive(r, &in, func() (err error) {
		c, err = in.config()
		if err == nil && h.exists(c.Name) {
			err = errExists(c.Name) // before the work of unzipping; checked again below
		}
		return err
	})
	defer remove()
	if err != nil {
		return err
	}
	h.admin.Lock()
	defer h.admin.Unlock()
	if h.exists(c.Name) {
		return errExists(c.Name)
	}
	c.CodeSHA256, c.CodeBytes, c.Modified = d.sha256, d.bytes, time.Now()
	held, err := h.adopt(d, c)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.functions[c.Name] = &function{config: c, code: held}
	h.mu.Unlock()
	h.log.InfoContext(r.Context(), "function created", "function", c.Name, "memory_mb", c.MemoryMB, "timeout_s",
		c.TimeoutS, "code_bytes", c.CodeBytes)
	h.writeJSON(w, http.StatusCreated, c.describe())
	return nil
}

// exists reports whether there is a function with this name.
func (h *Host) exists(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.functions[name]
	return ok
}

// adopt puts the code of d in its place, for the function c, and saves c. It returns the code with a reference. The
// caller holds admin.
func (h *Host) adopt(d deployment, c config) (*code, error) {
	h.mu.Lock()
	if err := h.store.install(d.dir, c.Name, d.sha256); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	held := h.holdLocked(h.store.codeDir(c.Name, d.sha256))
	h.mu.Unlock()
	if err := h.store.save(c); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.dropLocked(held)
		return nil, err
	}
	return held, nil
}

func (h *Host) updateCode(w http.ResponseWriter, r *http.Request) error {
	var in updateInput
	var f *function
	d, remove, err := h.receive(r, &in, func() (err error) {
		if f, err = h.lookup(r); err != nil {
			return err
		}
		return in.check(in.Architectures)
	})
	defer remove()
	if err != nil {
		return err
	}
	h.admin.Lock()
	defer h.admin.Unlock()
	c := h.settings(f)
	if !h.exists(c.Name) {
		return errNotFound(c.arn())
	}
	c.CodeSHA256, c.CodeBytes, c.Modified = d.sha256, d.bytes, time.Now()
	if in.DryRun {
		h.writeJSON(w, http.StatusOK, c.describe())
		return nil
	}
	held, err := h.adopt(d, c)
	if err != nil {
		return err
	}
	h.mu.Lock()
	old := f.code
	f.config, f.code = c, held
	if old != held {
		f.retireLocked()
	}
	h.dropLocked(old)
	h.mu.Unlock()
	h.log.InfoContext(r.Context(), "function code updated", "function", c.Name, "code_bytes", c.CodeBytes)
	h.writeJSON(w, http.StatusOK, c.describe())
	return nil
}

// updateConfiguration changes the settings of a function. Invocations that run keep the old ones.
func (h *Host) updateConfiguration(w http.ResponseWriter, r *http.Request, body []byte) error {
	var in settingsInput
	if err := readFields(body, &in); err != nil {
		return err
	}
	h.admin.Lock()
	defer h.admin.Unlock()
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c, err := in.apply(h.settings(f))
	if err != nil {
		return err
	}
	c.Modified = time.Now()
	if err := h.store.save(c); err != nil {
		return err
	}
	h.mu.Lock()
	f.config = c
	f.retireLocked()
	h.mu.Unlock()
	h.log.InfoContext(r.Context(), "function configuration updated", "function", c.Name, "memory_mb", c.MemoryMB,
		"timeout_s", c.TimeoutS)
	h.writeJSON(w, http.StatusOK, c.describe())
	return nil
}

// readFields decodes the body of a request without a zip.
func readFields(body []byte, fields any) error {
	if len(body) > maxFieldBytes {
		return errContent(errFieldsTooLong.Error())
	}
	if err := json.Unmarshal(body, fields); err != nil {
		return errContent("Could not parse request body into json: " + err.Error())
	}
	return nil
}

// deleteFunction removes a function. Invocations that run come to their end.
func (h *Host) deleteFunction(w http.ResponseWriter, r *http.Request, _ []byte) error {
	h.admin.Lock()
	defer h.admin.Unlock()
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	name := h.settings(f).Name
	if err := h.store.forget(name); err != nil {
		return err
	}
	h.mu.Lock()
	delete(h.functions, name)
	f.deleted = true
	f.retireLocked()
	h.dropLocked(f.code)
	h.mu.Unlock()
	h.log.InfoContext(r.Context(), "function deleted", "function", name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listFunctions answers with all functions on one page.
func (h *Host) listFunctions(w http.ResponseWriter, _ *http.Request, _ []byte) error {
	h.mu.Lock()
	all := make([]configuration, 0, len(h.functions))
	for _, f := range h.functions {
		all = append(all, f.config.describe())
	}
	h.mu.Unlock()
	slices.SortFunc(all, func(a, b configuration) int { return strings.Compare(a.FunctionName, b.FunctionName) })
	h.writeJSON(w, http.StatusOK, struct{ Functions []configuration }{all})
	return nil
}

// concurrency is the reservation of a function, if it has one.
type concurrency struct {
	ReservedConcurrentExecutions *int `json:",omitempty"`
}

func (h *Host) getFunction(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c := h.settings(f)
	out := struct {
		Configuration configuration
		Code          struct{ RepositoryType string }
		Concurrency   *concurrency `json:",omitempty"`
	}{Configuration: c.describe()}
	out.Code.RepositoryType = "local"
	if c.Reserved != nil {
		out.Concurrency = &concurrency{c.Reserved}
	}
	h.writeJSON(w, http.StatusOK, out)
	return nil
}

func (h *Host) getConfiguration(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	h.writeJSON(w, http.StatusOK, h.settings(f).describe())
	return nil
}

func (h *Host) getConcurrency(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	h.writeJSON(w, http.StatusOK, concurrency{h.settings(f).Reserved})
	return nil
}

func (h *Host) putConcurrency(w http.ResponseWriter, r *http.Request, body []byte) error {
	var in concurrency
	if err := readFields(body, &in); err != nil {
		return err
	}
	if in.ReservedConcurrentExecutions == nil || *in.ReservedConcurrentExecutions < 0 {
		return errInvalid("ReservedConcurrentExecutions must be 0 or more")
	}
	if err := h.reserve(r, in.ReservedConcurrentExecutions); err != nil {
		return err
	}
	h.writeJSON(w, http.StatusOK, in)
	return nil
}

func (h *Host) deleteConcurrency(w http.ResponseWriter, r *http.Request, _ []byte) error {
	if err := h.reserve(r, nil); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// reserve sets or removes the reserved concurrency of a function. AWS keeps 100 of the account's limit without
// reservation; a local host, whose limit may be far below that, keeps none.
func (h *Host) reserve(r *http.Request, reserved *int) error {
	h.admin.Lock()
	defer h.admin.Unlock()
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c := h.settings(f)
	c.Reserved = reserved
	if reserved != nil {
		h.mu.Lock()
		left := h.opts.Concurrency - *reserved
		for _, other := range h.functions {
			if other != f && other.config.Reserved != nil {
				left -= *other.config.Reserved
			}
		}
		h.mu.Unlock()
		if left < 0 {
			return errInvalid("Specified ReservedConcurrentExecutions for function decreases account's "+
				"UnreservedConcurrentExecution "+
				"below its minimum value of [0]: the account has %d", h.opts.Concurrency)
		}
	}
	if err := h.store.save(c); err != nil {
		return fmt.Errorf("reserve concurrency: %w", err)
	}
	h.mu.Lock()
	f.config = c
	h.mu.Unlock()
	return nil
}
