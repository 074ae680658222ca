package build

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/workflows/chain"
)

// Chains keeps chains by name and digest under one state directory, as <state>/chains/<name>@<digest>.json. A stored
// chain never changes: a run that started with one finds it for as long as it goes on. The methods may be called
// concurrently, also by several processes. The zero value is not useful; use NewChains.
type Chains struct{ dir string }

// NewChains returns the chains of the state directory stateDir. Nothing is made there before the first Put.
func NewChains(stateDir string) *Chains { return &Chains{dir: filepath.Join(stateDir, "chains")} }

// StoredChain is a chain as it is kept.
type StoredChain struct {
	chain.Chain

	// Path is its file.
	Path string
	// StoredAt is when it was put or touched last.
	StoredAt time.Time
}

// chainSuffix ends the names of the files of chains.
const chainSuffix = ".json"

// Put stores a chain, whole or not at all, as the newest of its name; fresh says that it was not there before.
func (s *Chains) Put(c chain.Chain) (path string, fresh bool, err error) {
	return s.write(c)
}

// put stores a chain as one that was used last at a time.
func (s *Chains) put(c chain.Chain, used time.Time) error {
	path, known := s.path(c.Name(), c.Digest())
	if _, err := os.Stat(path); !known || err != nil {
		if path, _, err = s.write(c); err != nil {
			return err
		}
	}
	return os.Chtimes(path, time.Time{}, used)
}

func (s *Chains) write(c chain.Chain) (path string, fresh bool, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return "", false, fmt.Errorf("store chain %s: %w", c.Name(), err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", false, fmt.Errorf("store chain %s: %w; choose a writable state directory with --state", c.Name(), err)
	}
	path, known := s.path(c.Name(), c.Digest())
	if !known {
		return "", false, fmt.Errorf("store chain %q: it has no name that a chain can have", c.Name())
	}
	_, missing := os.Stat(path)
	scratch, err := os.CreateTemp(s.dir, scratchPrefix)
	if err != nil {
		return "", false, fmt.Errorf("store chain %s: %w", c.Name(), err)
	}
	_, err = scratch.Write(append(text, '\n'))
	if err := errors.Join(err, scratch.Sync(), scratch.Close()); err != nil {
		return "", false, fmt.Errorf("store chain %s: %w", c.Name(), errors.Join(err, os.Remove(scratch.Name())))
	}
	if err := os.Rename(scratch.Name(), path); err != nil {
		return "", false, fmt.Errorf("store chain %s: %w", c.Name(), errors.Join(err, os.Remove(scratch.Name())))
	}
	return path, missing != nil, nil
}

// Get returns the chain of this name and digest. It wraps ErrUnknownBuild when there is none.
func (s *Chains) Get(name, digest string) (chain.Chain, error) {
	path, known := s.path(name, digest)
	if !known {
		return chain.Chain{}, fmt.Errorf("find chain %q of digest %q: %w", name, digest, ErrUnknownBuild)
	}
	c, err := readChain(path, name)
	if errors.Is(err, fs.ErrNotExist) {
		return chain.Chain{}, fmt.Errorf("find chain %s of digest %s: %w; run its file again, or cancel the runs "+
			"that need it", name, digest, ErrUnknownBuild)
	}
	return c, err
}

// Remove forgets a chain; it is no error when there is none.
func (s *Chains) Remove(name, digest string) error {
	path, known := s.path(name, digest)
	if !known {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget chain %s: %w", name, err)
	}
	return nil
}

// Touch makes a chain the newest of its name, and notes that it is in use; it is no error when there is none.
func (s *Chains) Touch(name, digest string) error {
	path, known := s.path(name, digest)
	if !known {
		return nil
	}
	if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note the use of chain %s: %w", name, err)
	}
	return nil
}

// Forget removes the chains that were last put or touched before then, but for those that keep names.
func (s *Chains) Forget(then time.Time, keep func(name, digest string) bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list chains: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		name, digest, isChain := s.parse(entry.Name())
		info, err := entry.Info()
		if !isChain || err != nil || !info.ModTime().Before(then) || keep(name, digest) {
			continue
		}
		problems = append(problems, s.Remove(name, digest))
	}
	return errors.Join(problems...)
}

// Newest returns the newest stored chain of every name, sorted by name. Files that are no chains are left out.
func (s *Chains) Newest() ([]StoredChain, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	newest := map[string]StoredChain{}
	for _, entry := range entries {
		name, digest, isChain := s.parse(entry.Name())
		info, err := entry.Info()
		if !isChain || err != nil || !info.ModTime().After(newest[name].StoredAt) {
			continue
		}
		path, _ := s.path(name, digest)
		if c, err := readChain(path, name); err == nil {
			newest[name] = StoredChain{Chain: c, Path: path, StoredAt: info.ModTime()}
		}
	}
	chains := make([]StoredChain, 0, len(newest))
	for _, c := range newest {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, func(a, b StoredChain) int { return cmp.Compare(a.Name(), b.Name()) })
	return chains, nil
}

// parse reads the name of a chain's file; false for other files.
func (s *Chains) parse(file string) (name, digest string, isChain bool) {
	base, isChain := strings.CutSuffix(file, chainSuffix)
	name, digest, _ = strings.Cut(base, "@")
	_, known := s.path(name, digest)
	return name, digest, isChain && known
}

// path is the file of a chain; false for what names none.
func (s *Chains) path(name, digest string) (string, bool) {
	return filepath.Join(s.dir, name+"@"+digest+chainSuffix),
		validName.MatchString(name) && validDigest.MatchString(digest)
}

func readChain(path, name string) (c chain.Chain, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s is damaged: %w; remove it and run the chain's file again", path, err)
	}
	if c.Name() != name {
		return c, fmt.Errorf("%s holds chain %q: remove it and run the chain's file again", path, c.Name())
	}
	return c, nil
}
