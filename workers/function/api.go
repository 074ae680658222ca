package function

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFieldBytes bounds a request without its zip.
const maxFieldBytes = 256 << 10

// errFieldsTooLong is of a request that holds too much beside its zip.
func errFieldsTooLong() error {
	return errContent("the request holds more than " + strconv.Itoa(maxFieldBytes) + " bytes beside its zip")
}

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
			body, err := h.body(r, h.unproven, maxSyncBytes)
			if errors.Is(err, errTooLong) {
				err = errTooLarge(maxSyncBytes)
			}
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
	handle("GET /2019-09-30/functions/{name}/concurrency", h.getConcurrency)
	handle("DELETE /2017-10-31/functions/{name}/concurrency", h.deleteConcurrency)
	handle("GET /2017-03-31/tags/{name}", h.listTags)
	handle("POST /2017-03-31/tags/{name}", h.tag)
	handle("DELETE /2017-03-31/tags/{name}", h.untag)
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

// deployment is the code of a request, unzipped in a temporary directory.
type deployment struct {
	dir    string
	sha256 string // of the zip, in hex
	bytes  int64  // of the zip
}

// receive reads a request that brings code into fields, of which code is part, and unzips that once check has passed.
// The caller calls remove in any case.
func (h *Host) receive(
	r *http.Request, fields any, code *codeInput, check func() error,
) (d deployment, remove func(), err error) {
	remove = func() {
		if err := os.RemoveAll(d.dir); err != nil {
			h.log.WarnContext(r.Context(), "upload not removed", "error", err)
		}
	}
	body, err := h.body(r, h.unprovenUploads, maxUploadBytes)
	if errors.Is(err, errTooLong) {
		return d, remove, errUploadTooLarge()
	}
	if err != nil {
		return d, remove, err
	}
	if err := json.Unmarshal(body, fields); err != nil {
		return d, remove, errContent("Could not parse request body into json: " + err.Error())
	}
	if len(body)-base64.StdEncoding.EncodedLen(len(code.ZipFile)) > maxFieldBytes {
		return d, remove, errFieldsTooLong()
	}
	if err := check(); err != nil {
		return d, remove, err
	}
	archive, err := h.archive(r.Context(), code)
	if err != nil {
		return d, remove, err
	}
	sum := sha256.Sum256(archive)
	d.sha256, d.bytes = hex.EncodeToString(sum[:]), int64(len(archive))
	if d.dir, err = h.store.tempDir("code-*"); err != nil {
		return d, remove, err
	}
	if err := unzip(archive, d.dir); err != nil {
		return d, remove, errInvalid("Could not unzip uploaded file: %v", err)
	}
	return d, remove, nil
}

// archive returns the zip of code, which is in the request or in S3.
func (h *Host) archive(ctx context.Context, in *codeInput) ([]byte, error) {
	switch {
	case in.S3Bucket != "" && len(in.ZipFile) > 0:
		return nil, errInvalid("the code is in ZipFile and in S3: choose one")
	case in.S3Bucket != "" && h.opts.S3 == nil:
		return nil, errInvalid("code in S3 does not run here: put the zip into ZipFile")
	case in.S3Bucket != "":
		archive, err := h.opts.S3(ctx, in.S3Bucket, in.S3Key)
		if err != nil {
			return nil, errInvalid("Error occurred while GetObject. %v", err)
		}
		return archive, nil
	case len(in.ZipFile) == 0:
		return nil, errInvalid("no code: put a zip with a bootstrap into ZipFile")
	default:
		return in.ZipFile, nil
	}
}

func (h *Host) createFunction(w http.ResponseWriter, r *http.Request) error {
	var in createInput
	var c config
	d, remove, err := h.receive(r, &in, &in.Code, func() (err error) {
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
	d, remove, err := h.receive(r, &in, &in.codeInput, func() (err error) {
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
		return errFieldsTooLong()
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

// listFunctions answers with one page of the functions, by their names. The marker of the next one is the name of its
// first function.
func (h *Host) listFunctions(w http.ResponseWriter, r *http.Request, _ []byte) error {
	most, marker := maxListed, r.URL.Query().Get("Marker")
	if text := r.URL.Query().Get("MaxItems"); text != "" {
		asked, err := strconv.Atoi(text)
		if err != nil || asked < 1 || asked > 10_000 {
			return errInvalid("'maxItems' %q failed to satisfy constraint: between 1 and 10000", text)
		}
		most = min(most, asked)
	}
	h.mu.Lock()
	all := make([]configuration, 0, len(h.functions))
	for _, f := range h.functions {
		all = append(all, f.config.describe())
	}
	h.mu.Unlock()
	slices.SortFunc(all, func(a, b configuration) int { return strings.Compare(a.FunctionName, b.FunctionName) })
	first, _ := slices.BinarySearchFunc(all, marker, func(c configuration, name string) int {
		return strings.Compare(c.FunctionName, name)
	})
	all = all[first:]
	page := struct {
		Functions  []configuration
		NextMarker string `json:",omitempty"`
	}{Functions: all}
	if len(all) > most {
		page.Functions, page.NextMarker = all[:most], all[most].FunctionName
	}
	h.writeJSON(w, http.StatusOK, page)
	return nil
}

// maxListed is how many functions ListFunctions answers with at most, whatever is asked for:
// https://docs.aws.amazon.com/lambda/latest/api/API_ListFunctions.html.
const maxListed = 50

func (h *Host) getFunction(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c := h.settings(f)
	out := struct {
		Configuration configuration
		Code          struct{ RepositoryType string }
		Tags          map[string]string `json:",omitempty"`
		Concurrency   *reservation      `json:",omitempty"`
	}{Configuration: c.describe(), Tags: c.Tags}
	if c.Reserved != nil {
		out.Concurrency = &reservation{c.Reserved}
	}
	out.Code.RepositoryType = "local"
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
