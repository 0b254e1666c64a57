-- Definitions for the scripts that record a failed attempt. They use no KEYS and no ARGV.
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

-- A record keeps its latest failed attempts, one JSON object a line: `shared/jobs/failed_attempts.py` reads them.
local MAX_KEPT = 8

-- Return the failures of a record and one more. Returns what is kept if the attempt names no worker.
local function with_failure(kept, attempt, code, message, now)
  local worker = string.match(attempt, '^(.+)/[^/]*$')
  if not worker then return kept or '' end
  local lines = {}
  for line in string.gmatch(kept or '', '[^\n]+') do lines[#lines + 1] = line end
  lines[#lines + 1] = string.format('{"worker":%s,"code":%s,"at":%s,"message":%s}',
    cjson.encode(worker), cjson.encode(code), now, cjson.encode(message))
  return table.concat(lines, '\n', math.max(1, #lines - MAX_KEPT + 1))
end

-- Return whether a job failed alone on healthy devices of a worker of this host.
local function failed_on_host(kept, host)
  local worker = '{"worker":' .. string.sub(cjson.encode(host), 1, -2) .. ':'
  for line in string.gmatch(kept or '', '[^\n]+') do
    if string.find(line, worker, 1, true) == 1 and string.find(line, '"code":"device_error"', 1, true) then
      return true
    end
  end
  return false
end
