-- Definitions for the script that ends jobs; `failed_attempts.lua` comes before them. They use no KEYS and no ARGV.
-- Ends are counted by state and error code: since the namespace was made, and in a hash for each period of ten minutes, as
-- failed attempts are. The jobs that failed last are listed. `shared/jobs/recent_ends.py` reads both.
local MAX_FAILED = 1000

-- Count the end of a job, and list the job if it failed. A key of another type costs no job.
local function note_end(ends, record, ended_as, now)
  redis.pcall('HINCRBY', ends, ended_as, 1)
  local period = ends .. ':' .. math.floor(now / PERIOD_S)
  redis.pcall('HINCRBY', period, ended_as, 1)
  redis.pcall('EXPIRE', period, KEPT_S)
  if string.find(ended_as, 'failed:', 1, true) ~= 1 then return end
  redis.pcall('ZADD', ends .. ':failed', now, string.match(record, '[^:]*$'))
  redis.pcall('ZREMRANGEBYRANK', ends .. ':failed', 0, -1 - MAX_FAILED)
end
