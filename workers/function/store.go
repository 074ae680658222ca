package function

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	configFile = "function.json"
	tempName   = ".tmp"
	lockName   = ".lock"
)

// store is the directory in which a host keeps its functions. Names that begin with a dot are its own; no function
// has such a name.
type store struct {
	dir  string
	lock *os.File
}

// openStore takes dir for this process and empties its temporary directory, in which a killed host may have left
// something. The lock ends with the process, however that ends.
func openStore(dir string) (*store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory for functions: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory for functions: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("directory for functions: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("directory %s is in use by another host; stop it or choose another directory: %w",
			dir, err), lock.Close())
	}
	s := &store{dir: dir, lock: lock}
	if err := errors.Join(os.RemoveAll(s.temp()), os.Mkdir(s.temp(), 0o700)); err != nil {
		return nil, errors.Join(fmt.Errorf("sweep %s: %w", s.temp(), err), s.close())
	}
	return s, nil
}

// close gives the directory back. It unlocks the file and does not just close it, because a process that another thread
// is just forking holds a copy of the file, and with it the lock, until it executes its program.
func (s *store) close() error {
	return errors.Join(os.RemoveAll(s.temp()), syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN), s.lock.Close())
}

func (s *store) temp() string                     { return filepath.Join(s.dir, tempName) }
func (s *store) codeDir(name, sha string) string  { return filepath.Join(s.dir, name, sha) }
func (s *store) configPath(name string) string    { return filepath.Join(s.dir, name, configFile) }
func (s *store) tempFile() (*os.File, error)      { return os.CreateTemp(s.temp(), "file-*") }
func (s *store) tempDir(p string) (string, error) { return os.MkdirTemp(s.temp(), p) }

// load returns the functions in the directory and removes what belongs to none: code that was replaced, and
// functions that a crash left half created or half deleted.
func (s *store) load(logger *slog.Logger) ([]config, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("load functions: %w", err)
	}
	var configs []config
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() || !isName(name) {
			continue
		}
		c, err := s.loadOne(name)
		if err != nil {
			logger.Warn("function removed", "function", name, "reason", err)
			if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
				return nil, fmt.Errorf("sweep function %s: %w", name, err)
			}
			continue
		}
		if err := s.sweepCode(c); err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return configs, nil
}

// loadOne reads one function and checks that its code is there.
func (s *store) loadOne(name string) (config, error) {
	b, err := os.ReadFile(s.configPath(name))
	if err != nil {
		return config{}, err
	}
	var c config
	if err := json.Unmarshal(b, &c); err != nil {
		return config{}, err
	}
	if sum, err := hex.DecodeString(c.CodeSHA256); err != nil || len(sum) != sha256.Size || c.Name != name {
		return config{}, fmt.Errorf("%s does not describe this function", configFile)
	}
	_, err = os.Stat(s.codeDir(name, c.CodeSHA256))
	return c, err
}

// sweepCode removes the code that c replaced.
func (s *store) sweepCode(c config) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, c.Name))
	if err != nil {
		return fmt.Errorf("sweep function %s: %w", c.Name, err)
	}
	for _, entry := range entries {
		if name := entry.Name(); name != configFile && name != c.CodeSHA256 {
			if err := os.RemoveAll(filepath.Join(s.dir, c.Name, name)); err != nil {
				return fmt.Errorf("sweep function %s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// save writes c so that a crash leaves either the old file or the new one.
func (s *store) save(c config) error {
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return fmt.Errorf("save function %s: %w", c.Name, err)
	}
	f, err := s.tempFile()
	if err != nil {
		return fmt.Errorf("save function %s: %w", c.Name, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.configPath(c.Name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save function %s: %w", c.Name, err), removeIfThere(f.Name()))
	}
	return nil
}

// forget removes the settings of a function; its code goes when nobody uses it.
func (s *store) forget(name string) error {
	if err := os.Remove(s.configPath(name)); err != nil {
		return fmt.Errorf("delete function %s: %w", name, err)
	}
	return nil
}

// install moves an unzipped directory to its place. Code with the same digest that is there already stays.
func (s *store) install(unzipped, name, sha string) error {
	dir := s.codeDir(name, sha)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("install the code of %s: %w", name, err)
	}
	if err := os.Rename(unzipped, dir); err != nil {
		return fmt.Errorf("install the code of %s: %w", name, err)
	}
	return nil
}

// discard takes code out of its place, and returns where it waits for its removal. The function's directory goes
// with the last of its contents.
func (s *store) discard(dir string) (trash string, err error) {
	trash = filepath.Join(s.temp(), fmt.Sprintf("trash-%s-%d", filepath.Base(dir), time.Now().UnixNano()))
	if err := os.Rename(dir, trash); err != nil {
		return "", err
	}
	_ = os.Remove(filepath.Dir(dir)) // fails while the function has settings or other code
	return trash, nil
}

// removeIfThere removes a file that may not exist.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
