-- Accept jobs: their records and their queue messages appear together, once per id; all or none.
-- KEYS 1 known queues (set)   2 limits of waiting jobs (hash: tenant, or '*' for everybody -> jobs)
--      3.. for each job its record (hash) and its list
-- ARGV 1.. for each job its request JSON and its message
-- Returns {'accepted', {for each job '' if it is new, or the request that stood there before}},
-- or {whose limit, the limit, how many wait, how many more were asked for}.
local before, fresh, asked = {}, {}, {['*'] = 0}
for i = 3, #KEYS, 2 do
  local job = (i - 1) / 2
  local stands = fresh[KEYS[i]] or redis.call('HGET', KEYS[i], 'request')
  before[job] = stands or ''
  if not stands then
    fresh[KEYS[i]] = ARGV[i - 2]
    local tenant = tenant_of(KEYS[i + 1])
    asked['*'] = asked['*'] + 1
    if tenant then asked[tenant] = (asked[tenant] or 0) + 1 end
  end
end

local function waiting(whose)
  local jobs = 0
  for _, queue in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    if whose == '*' or tenant_of(queue) == whose then
      for _, level in ipairs(LEVELS) do jobs = jobs + redis.call('LLEN', queue .. level) end
    end
  end
  return jobs
end

if redis.call('EXISTS', KEYS[2]) == 1 then
  for whose, more in pairs(asked) do
    local limit = redis.call('HGET', KEYS[2], whose)
    if limit and more > 0 then
      local jobs = waiting(whose)
      if jobs + more > tonumber(limit) then return {whose, limit, jobs, more} end
    end
  end
end

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
for i = 3, #KEYS, 2 do
  if before[(i - 1) / 2] == '' then
    redis.call('HSET', KEYS[i], 'state', 'queued', 'request', ARGV[i - 2], 'submitted_at', now)
    redis.call('LPUSH', KEYS[i + 1], ARGV[i - 1])
    redis.call('SADD', KEYS[1], queue_of(KEYS[i + 1]))
  end
end
return {'accepted', before}
