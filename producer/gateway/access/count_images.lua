-- Charge images to a quota, all of them or none, or give some back. The images of one job are charged once, however often
-- that is asked for. Return whether it was done, how many are left, and whether this call has charged them.
-- KEYS 1 the images of one API key and day (string)   2 the mark that the images of this job are charged (string)
--      3 the record of the job (hash), if this lane has it; to give back
-- ARGV 1 images; less than 0: so many are given back, unless the job was accepted   2 quota
--      3 seconds for which the count is kept   4 seconds for which the mark is kept
set_aside_unless('string', KEYS[1])
set_aside_unless('string', KEYS[2])
local text = redis.call('GET', KEYS[1]) or ''
local charged = #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or 0  -- a damaged count is none
local images, quota = tonumber(ARGV[1]), tonumber(ARGV[2])
if images > 0 then
  if redis.call('EXISTS', KEYS[2]) == 1 then return {1, math.max(0, quota - charged), 0} end
  if charged + images > quota then return {0, math.max(0, quota - charged), 0} end
  redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[4])
elseif (KEYS[3] and redis.call('EXISTS', KEYS[3]) == 1) or redis.call('DEL', KEYS[2]) == 0 then
  return {0, math.max(0, quota - charged), 0}
end
charged = math.max(0, charged + images)
redis.call('SET', KEYS[1], string.format('%.0f', charged), 'EX', ARGV[3])
return {1, math.max(0, quota - charged), 1}
