-- Definitions for the scripts that record a failed attempt. They use no KEYS and no ARGV, and return nothing.
-- Failed attempts are counted by host and error code, in a hash for each period of ten minutes, which is kept a little
-- longer than an hour. `shared/jobs/host_failures.py` reads them.
local PERIOD_S, KEPT_S, MAX_FIELDS = 600, 4500, 1000
local OTHER_HOSTS = '*'

-- Count a failure of the worker that makes an attempt. An attempt that names no host is not counted. A key of another
-- type costs no job.
local function count_failure(prefix, attempt, code, now)
  local host = string.match(attempt, '^(.+):[^:]*:[^:/]*/[^/]*$')
  if not host then return end
  local key = prefix .. ':' .. math.floor(now / PERIOD_S)
  local field = host .. ' ' .. code
  local hosts = redis.pcall('HLEN', key)
  if type(hosts) ~= 'number' then return end
  if hosts >= MAX_FIELDS and redis.call('HEXISTS', key, field) == 0 then field = OTHER_HOSTS .. ' ' .. code end
  redis.pcall('HINCRBY', key, field, 1)
  redis.call('EXPIRE', key, KEPT_S)
end
